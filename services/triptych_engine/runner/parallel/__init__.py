"""Tensor parallel: each rank has a share of every large weight, and the ranks add up what they have computed."""
