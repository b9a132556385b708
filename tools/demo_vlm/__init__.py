"""The demo vision-language model: images of simple scenes, questions about them, and the training of the vision part."""
