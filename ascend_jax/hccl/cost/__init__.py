"""Times of collectives: one file per algorithm, each with the form that HCCL documents."""
