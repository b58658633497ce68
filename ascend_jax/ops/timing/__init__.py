"""Times of operators on a chip: matrix multiply, attention, vector work, copies; and how far each can be trusted."""
