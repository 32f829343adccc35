"""Split learning of torch modules: where a model is cut, and the work of each side."""
