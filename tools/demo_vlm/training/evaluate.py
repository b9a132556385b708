"""The examination in this process, with transformers' own generate on the joined checkpoint, without any service."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from ..dataset.exam import ExamResult, make_exam, mark

_MAX_ANSWER_TOKENS = 32


@torch.inference_mode()
def evaluate(model_dir: Path, count: int, dtype: torch.dtype = torch.bfloat16) -> ExamResult:
    """Ask about `count` images, greedily and one after the other."""
    processor = AutoProcessor.from_pretrained(model_dir)
    model = LlavaForConditionalGeneration.from_pretrained(model_dir, dtype=dtype)
    items = make_exam(count)
    answers = []
    for item in items:
        content = [{"type": "image", "image": Image.open(io.BytesIO(item.image))}, {"type": "text", "text": item.question.text}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(dtype)
        tokens = model.generate(**inputs, max_new_tokens=_MAX_ANSWER_TOKENS, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        answers.append(processor.decode(tokens, skip_special_tokens=True))
    return mark(items, answers)
