"""The house plan: rooms import downwards only, and importing the package starts nothing."""

import ast
import pathlib
import subprocess
import sys

import pytest

import ascend_jax

ROOT = pathlib.Path(ascend_jax.__file__).parent
# chip < runtime < {hccl, ops, insight} < ge < sweep < acl < cli; the three in the middle do not see one another
FLOORS = {"chip": 0, "runtime": 1, "hccl": 2, "ops": 2, "insight": 2, "ge": 3, "sweep": 4, "acl": 5, "cli": 6}
CORE = {"jax", "jaxlib", "numpy", "chex", "absl"}


def modules():
    return sorted(path for path in ROOT.rglob("*.py"))


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports(room, names):
    """Return the imports that a file in `room` may not have."""
    wrong = []
    for name in names:
        parts = name.split(".")
        if parts[0] != "ascend_jax" or len(parts) < 2 or parts[1] not in FLOORS:
            continue
        if parts[1] != room and FLOORS[parts[1]] >= FLOORS[room]:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    parts = path.relative_to(ROOT).parts
    if len(parts) > 1:
        assert parts[0] in FLOORS, f"{parts[0]} has no floor in the house plan"
        assert not wrong_imports(parts[0], imports_of(path))


def test_memory_stands_on_the_rest_of_the_runtime():
    below = list((ROOT / "runtime").glob("*.py"))
    assert len(below) > 40
    for path in below:
        names = [name for name in imports_of(path) if name.split(".")[:3] == ["ascend_jax", "runtime", "memory"]]
        assert not names, f"{path} imports {names}"


def test_the_rule_finds_an_upward_import():
    assert wrong_imports("runtime", ["ascend_jax.ops.registry"]) == ["ascend_jax.ops.registry"]
    assert wrong_imports("insight", ["ascend_jax.ops"]) == ["ascend_jax.ops"]
    assert not wrong_imports("ops", ["ascend_jax.runtime.state", "ascend_jax.chip.spec", "ascend_jax.ops.tensor"])


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_core_dependencies_at_import(path):
    tree = ast.parse(path.read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name.split(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module.split(".")[0] for node in top if isinstance(node, ast.ImportFrom)}
    assert names - CORE - set(sys.stdlib_module_names) <= {"ascend_jax"}


def test_only_the_command_line_may_use_the_whole_package():
    for path in modules():
        room = path.relative_to(ROOT).parts[0]
        if room not in ("cli", "__init__.py"):
            names = [name for name in imports_of(path) if name.split(".")[:2] == ["ascend_jax"]]
            assert not names, f"{path} imports the front door"


def test_importing_starts_no_backend():
    code = (
        "import ascend_jax, ascend_jax.cli.main, jax;"
        "from jax._src import xla_bridge as b; assert not b._backends, b._backends;"
        "assert not jax.config.jax_enable_x64"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_public_names_are_listed_and_documented():
    assert sorted(ascend_jax.__all__) == list(dict.fromkeys(sorted(ascend_jax.__all__)))
    for name in ascend_jax.__all__:
        thing = getattr(ascend_jax, name)
        if callable(thing):
            assert thing.__doc__, name
