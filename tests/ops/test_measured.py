"""Your own measurements: both formats, what they match, and malformed files."""

import pytest

from ascend_jax.ops.timing.measured import dtype_name, operator_name, read_measurements

SUMMARY = """Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Input Shapes,Input Data Types
aclnnMatmul_1,MatMulV3,AI_CORE,10.0,20.5,"4096,4096;4096,4096",DT_BF16;DT_BF16
aclnnMatmul_2,MatMulV3,AI_CORE,40.0,21.5,"4096,4096;4096,4096",DT_BF16;DT_BF16
aclnnMatmul_3,MatMulV3,AI_CORE,70.0,30.5,"4096,4096;4096,4096",DT_BF16;DT_BF16
event,EVENT_RECORD,OTHER,80.0,0.5,N/A,N/A
attention,FlashAttentionScore,MIX_AIC,90.0,58.4,"1,1,1024,128;1,1,1024,128;1,1,1024,128",FLOAT16;FLOAT16;FLOAT16
"""


def read(tmp_path, text):
    path = tmp_path / "times.csv"
    path.write_text(text, encoding="utf-8")
    return read_measurements(path)


def test_op_summary(tmp_path):
    found = read(tmp_path, SUMMARY)
    assert found.find("matmul", [(4096, 4096), (4096, 4096)], "bfloat16") == 21.5  # the median
    assert found.find("aclnnMatmul", [(4096, 4096), (4096, 4096)], "bf16") == 21.5
    assert found.find("flash_attention", [(1, 1, 1024, 128)] * 3, "float16") == 58.4
    assert found.find("matmul", [(4096, 4096), (4096, 4096)], "float16") is None
    assert len(found.us) == 2


def test_own_format(tmp_path):
    found = read(tmp_path, "operator,shape,dtype,us\nadd,8192x8192;8192x8192,fp16,264\nSoftmaxV2,[16x 32],float,3\n")
    assert found.find("Add", [(8192, 8192)] * 2, "half") == 264
    assert found.find("softmax", [(16, 32)], "float32") == 3


def test_spellings():
    assert {operator_name(name) for name in ("aclnnMatmul", "MatMulV2", "matmul", "BatchMatMul")} == {"matmul"}
    assert {dtype_name(name) for name in ("DT_FLOAT16", "fp16", "half", "FLOAT16")} == {"float16"}


def test_attention_of_a_profile_is_known_by_query_key_and_value(tmp_path):
    head = "OP Type,Input Shapes,Input Data Types,Task Duration(us)\n"
    heads, rows = "1,1,1024,128", "1,1,1024,8"
    grad = f'FlashAttentionScoreGrad,"{heads};{heads};{heads};{heads};{rows};{rows};{heads}",FLOAT16,99\n'
    masked = f'FlashAttentionScore,"{heads};{heads};{heads};2048,2048",FLOAT16,50\n'
    found, shapes = read(tmp_path, head + grad + masked), [(1, 1, 1024, 128)] * 3
    assert found.find("flash_attention_backward", shapes, "float16") == 99
    assert found.find("flash_attention", shapes, "float16") is None, "a mask of unknown mode is not full attention"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "needs the columns operator, shape, dtype, us"),
        ("operator,shape,dtype,us\nadd,1x2,fp16\n", r"line 2: 3 cells, the header has 4"),
        ("operator,shape,dtype,us\nadd,1x2,fp16,1\nadd,1xq,fp16,1\n", r"line 3: shape '1xq'"),
        ("operator,shape,dtype,us\nadd,1x2,fp16,-1\n", r"line 2: column us is '-1'; a time in us above zero"),
        ("operator,shape,dtype,us\nadd,1x2,fp16,nan\n", "line 2: column us"),
        ("operator,shape,dtype,us\n,1x2,fp16,1\n", "line 2: column operator is empty"),
        ('operator,shape,dtype,us\n"add,1x2,fp16,1\n', r"line 2: not CSV"),
        ("operator,us,dtype,us\n", "line 1: a column is named twice"),
    ],
)
def test_malformed_files(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, text)


def test_a_binary_file(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_measurements(tmp_path / "x.csv")


def test_a_mask_is_part_of_what_was_measured(tmp_path):
    shape = "1x8x1024x64;1x8x1024x64;1x8x1024x64"
    lines = [f"flash_attention,{shape},fp16,{us},{mode}" for us, mode in ((60, ""), (66, 0), (57, 0), (40, 3))]
    found = read(tmp_path, "\n".join(["operator,shape,dtype,us,sparse_mode", *lines]))
    asked = ("flash_attention", [(1, 8, 1024, 64)] * 3, "float16")
    assert (found.find(*asked), found.find(*asked, 3), found.find(*asked, 2)) == (60, 40, None)
    assert found.band(*asked) == pytest.approx(0.1) and found.band(*asked, 3) is None
    with pytest.raises(ValueError, match="line 2: column sparse_mode is 'causal'"):
        read(tmp_path, f"operator,shape,dtype,us,sparse_mode\nadd,{shape},fp16,1,causal\n")


def test_tasks_that_are_no_kernels_are_skipped_and_counted(tmp_path):
    bad = [f'x,Add,AI_CORE,1,{us},"{shape}",FLOAT16' for us, shape in ((0, "4,4"), ("N/A", "4,4"), (2, ""), (2, ";"))]
    found = read(tmp_path, SUMMARY + "\n".join(bad) + "\n")
    assert len(found.us) == 2 and found.skipped == 5
