"""Update rules: pure maths on tensors, one file per paper."""
