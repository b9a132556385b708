"""Pictures, scenes and questions that the demo model is trained on, made as they are needed."""
