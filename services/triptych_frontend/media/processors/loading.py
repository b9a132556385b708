"""Loads the checkpoint's own media processor without torch, for its knowledge of sizes and placeholder text."""

from __future__ import annotations

import copy
import importlib
import logging
from pathlib import Path
from typing import Any

from triptych.errors import StartupError
from triptych_common.model.store import read_json

from triptych_frontend.errors import first_line
from triptych_frontend.media.processors.sizes_only import sized_feature_extractor, sized_image_processor
from triptych_frontend.media.processors.torchless import ADAPTERS, CHAT_TEMPLATES, VideoGeometry, pixtral_processor

log = logging.getLogger(__name__)
#: Files with the configuration of a checkpoint's processors, newer formats first.
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_VIDEO_FILES = ("video_preprocessor_config.json", "preprocessor_config.json")
#: Model type -> its video processor. These are the video processors whose sampling and resizing are implemented here.
VIDEO_PROCESSORS = {
    "qwen2_vl": "Qwen2VLVideoProcessor",
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "qwen3_vl_moe": "Qwen3VLVideoProcessor",
    "qwen3_5": "Qwen3VLVideoProcessor",
    "qwen3_5_moe": "Qwen3VLVideoProcessor",
    "lfm3_vl": "Qwen3VLVideoProcessor",
}


def load_media_processor(path: Path, hf_tokenizer: Any, max_pixels: int) -> Any | None:
    """The processor of the checkpoint in a directory, which works on sizes only; None for a text-only model.

    Args:
        hf_tokenizer: transformers' tokenizer. Some processors add tokens to it.
        max_pixels: most pixels of an image that the processor may create.

    Raises:
        StartupError: the model takes media, but its processor does not run here.
    """
    class_name = _processor_class_name(path)
    if class_name is None:
        return None
    try:
        return _load(path, class_name, hf_tokenizer, max_pixels)
    # Code of many model families runs here on untrusted files, so any exception is possible.
    except Exception as error:
        raise StartupError(f"the processor {class_name} of {path} cannot be loaded: {first_line(error)}") from error


def default_chat_template(processor: Any) -> str | None:
    """The processor's chat template, for checkpoints whose tokenizer has none."""
    template = getattr(processor, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template or CHAT_TEMPLATES.get(type(processor).__name__)


def _processor_class_name(path: Path) -> str | None:
    config = read_json(path / "config.json")
    if not any(name.endswith(("vision_config", "audio_config", "thinker_config")) for name in config):
        return None
    for file in _PROCESSOR_FILES:
        name = read_json(path / file).get("processor_class")
        if name:
            return str(name)
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    model_type = str(config.get("model_type", "")).removesuffix("_thinker")
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    return str(name) if name else None


def _load(path: Path, class_name: str, hf_tokenizer: Any, max_pixels: int) -> Any:
    # Import from the modules, not from `transformers`: without torchvision, some versions export empty classes there.
    from transformers.models.auto.feature_extraction_auto import AutoFeatureExtractor

    cls = _processor_class(class_name)
    parts: list[Any] = []
    for attribute in cls.get_attributes():
        if attribute == "tokenizer":
            parts.append(hf_tokenizer)
        elif attribute == "image_processor":
            loaded = _image_processor(path, class_name)
            parts.append(sized_image_processor(loaded, max_pixels))
        elif attribute == "feature_extractor":
            loaded = AutoFeatureExtractor.from_pretrained(str(path), local_files_only=True)
            parts.append(sized_feature_extractor(loaded))
        elif attribute == "video_processor":
            parts.append(VideoGeometry(_video_config(path)))
        else:
            raise StartupError(f"its part {attribute} is not known here")
    processor_dict, _ = cls.get_processor_dict(str(path), local_files_only=True)
    return cls.from_args_and_dict(parts, processor_dict)


def _image_processor(path: Path, class_name: str) -> Any:
    """The image processor for a processor's class, of transformers' PIL backend."""
    if class_name == "Lfm2VlProcessor":
        from triptych_common.media.lfm2_vl import Lfm2VlImageSizes  # late import: see no_torch

        return Lfm2VlImageSizes.from_pretrained(str(path), local_files_only=True)
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(str(path), backend="pil", local_files_only=True)


def _processor_class(name: str) -> Any:
    """The class, without the check of its parts' classes, because some parts are our own."""
    base: Any = pixtral_processor() if name == "PixtralProcessor" else _class_of_transformers(name)
    adapter = ADAPTERS.get(name)
    bases = (adapter, base) if adapter else (base,)
    # from_args_and_dict reads the argument names from __init__ itself.
    methods = {
        "check_argument_for_proper_class": lambda self, name, value: type(value),
        "__init__": base.__init__,
        # transformers' own version writes all parts as JSON, only for a log line.
        "__repr__": object.__repr__,
    }
    return type(name, bases, methods)


def _class_of_transformers(name: str) -> Any:
    """The class from the module that defines it. Without torch, `transformers` exports empty classes."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    model_type = next((model_type for model_type, found in PROCESSOR_MAPPING_NAMES.items() if found == name), None)
    if model_type is None:
        raise StartupError("transformers has no such class")
    family = model_type_to_module_name(model_type)
    module: Any = importlib.import_module(f"transformers.models.{family}.processing_{family}")
    if name == "SmolVLMProcessor" and not module.num2words:
        # The processor requires this package, but uses it only for videos, which are not supported here.
        module.num2words = str
    return getattr(module, name)


def _video_config(path: Path) -> dict[str, Any]:
    """The video processor's configuration, from the first file that has it."""
    config = dict(read_json(path / "processor_config.json").get("video_processor") or {})
    for file in _VIDEO_FILES:
        config = config or dict(read_json(path / file))
    if config.get("video_processor_type") not in VIDEO_PROCESSORS.values():
        # The configuration of older Qwen2-VL and 2.5-VL checkpoints only describes images.
        config["video_processor_type"] = VIDEO_PROCESSORS.get(read_json(path / "config.json").get("model_type", ""), "")
    return config


def merged_options(processor: Any, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the processor passes to its part for a modality: its own defaults, overridden by the options.

    Args:
        kind: images_kwargs, audio_kwargs or videos_kwargs.

    Raises:
        ValueError, TypeError: the processor does not accept the value of an option.
    """
    init_kwargs = getattr(processor.tokenizer, "init_kwargs", {})
    merged = processor._merge_kwargs(
        processor.valid_processor_kwargs, tokenizer_init_kwargs=init_kwargs, **{kind: copy.deepcopy(options)}
    )[kind]
    return {**merged, "return_tensors": "np"}
