"""The demo vision-language model: pictures of simple scenes, questions about them, and the training of the part that sees."""
