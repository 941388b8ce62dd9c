"""Update rules as pure functions of tensors, one file per paper."""
