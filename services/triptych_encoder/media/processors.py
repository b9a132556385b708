"""Loads the checkpoint's processor with transformers, even without torchvision.

Many families' processors require a video processor, which needs torchvision, although images do not. Without torchvision, our own
video processor replaces it. It handles Qwen's videos; videos of other families are refused. LFM2-VL's images always have our own
processor, so that they have the same pixels with and without torchvision.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PretrainedConfig, ProcessorMixin
from transformers.image_processing_backends import PilBackend, TorchvisionBackend
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available
from triptych.errors import StartupError
from triptych_common.media.geometry import check_made_pixels, resized
from triptych_common.media.lfm2_vl import Lfm2VlImageProcessor
from triptych_common.model import store as model_store

from triptych_encoder.media.video_processor import QwenVideoProcessor

log = logging.getLogger(__name__)
#: Files that define how media are preprocessed. A change of one of them changes the embeddings.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
#: Model types whose videos are supported.
VIDEO_MODEL_TYPES = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "lfm3_vl"})
_BUDGET_PER_VIDEO = VIDEO_MODEL_TYPES - {"qwen2_vl", "qwen2_5_vl"}


def load_processor(path: Path, config: PretrainedConfig, max_pixels: int) -> ProcessorMixin:
    """The processor of a checkpoint.

    Args:
        max_pixels: see `limit_made_pixels`.

    Raises:
        StartupError: the processor's files are missing or broken, or transformers has no such processor.
    """
    name = _processor_class_name(path, config)
    cls = getattr(transformers, name or "", None)
    if name is None or cls is None:
        raise StartupError(f"transformers {transformers.__version__} has no processor for {config.model_type} (asked for {name})")
    _without_num2words(cls)
    try:
        stand_ins = _stand_ins(cls, path, config)
        processor = _with_stand_ins(cls, path, stand_ins) if stand_ins else cls.from_pretrained(path)
    except (OSError, ValueError, TypeError, ImportError, AttributeError) as error:
        raise StartupError(f"cannot load the processor of {config.model_type}: {str(error).strip().splitlines()[0]}") from error
    if getattr(processor, "image_processor", None) is not None:
        limit_made_pixels(processor.image_processor, max_pixels)
    return processor


def limit_made_pixels(image_processor: Any, max_pixels: int) -> None:
    """Make the processor raise ValueError before it creates an image with more pixels, see `check_made_pixels`."""
    family = type(image_processor)
    # The check goes between the family's own methods, which use sizes of various kinds, and the backend's methods, which use
    # heights and widths.
    backend = next((base for base in family.__mro__ if base in (PilBackend, TorchvisionBackend)), None)
    if backend is None:
        return

    class Bounded(backend):  # type: ignore[valid-type,misc]
        def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
            height, width = image.shape[-2:]
            check_made_pixels(*resized(height, width, size), max_pixels)
            return super().resize(image, size, *args, **kwargs)

    methods = {}
    if hasattr(family, "pad_to_square"):

        def pad_to_square(self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
            edge = max(image.shape[-2:])
            check_made_pixels(edge, edge, max_pixels)
            return family.pad_to_square(self, image, *args, **kwargs)

        methods["pad_to_square"] = pad_to_square
    image_processor.__class__ = type(family.__name__, (family, Bounded), methods)


def video_config(path: Path) -> dict[str, Any]:
    """The video processor's configuration: its own file, else the processor's section, else the image processor's."""
    own = model_store.read_json(path / "video_preprocessor_config.json")
    nested = model_store.read_json(path / "processor_config.json").get("video_processor")
    return own or nested or model_store.read_json(path / "preprocessor_config.json")


def _processor_class_name(path: Path, config: PretrainedConfig) -> str | None:
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        name = model_store.read_json(path / file).get("processor_class")
        if name:
            return name
    return PROCESSOR_MAPPING_NAMES.get(config.model_type)


def _stand_ins(cls: type[ProcessorMixin], path: Path, config: PretrainedConfig) -> dict[str, Any]:
    """Our own parts in the places of those that need torchvision, by their names in the processor."""
    found: dict[str, Any] = {}
    if cls.__name__ == "Lfm2VlProcessor":
        found["image_processor"] = Lfm2VlImageProcessor.from_pretrained(path)
    if "video_processor" in cls.get_attributes() and not is_torchvision_available():
        is_budget_per_video = config.model_type in _BUDGET_PER_VIDEO
        found["video_processor"] = QwenVideoProcessor(_qwen_video_settings(path), budget_per_video=is_budget_per_video)
    return found


def _with_stand_ins(cls: type[ProcessorMixin], path: Path, stand_ins: dict[str, Any]) -> ProcessorMixin:
    loaders = {"image_processor": AutoImageProcessor, "feature_extractor": AutoFeatureExtractor, "tokenizer": AutoTokenizer}
    parts = [stand_ins.get(attribute) or loaders[attribute].from_pretrained(path) for attribute in cls.get_attributes()]
    settings, _ = cls.get_processor_dict(path)
    template = path / "chat_template.jinja"
    chat_template = template.read_text(encoding="utf-8") if template.is_file() else None
    lenient = _without_class_check(cls, frozenset(stand_ins))
    return lenient.from_args_and_dict(parts, {**settings, "chat_template": chat_template})


def _without_class_check(cls: type[ProcessorMixin], names: frozenset[str]) -> type[ProcessorMixin]:
    """A subclass that accepts parts with these names that are not from transformers. It keeps the class's name, which messages
    show."""

    class Lenient(cls):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name in names:
                return type(argument)
            return super().check_argument_for_proper_class(argument_name, argument)

    Lenient.__name__, Lenient.__qualname__, Lenient.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Lenient


def _qwen_video_settings(path: Path) -> dict[str, Any]:
    """The settings that our video processor knows. An image processor's pixel limits are left out: they do not apply to videos."""
    known = ("patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std", "rescale_factor")
    config = video_config(path)
    is_video = "video_processor_type" in config
    more = ("size", "cap_pixels_per_frame", "max_video_tokens") if is_video else ()
    return {name: config[name] for name in (*known, *more) if isinstance(config.get(name), (int, float, list, dict))}


def _without_num2words(cls: type[ProcessorMixin]) -> None:
    """Let SmolVLM's processor load without num2words, which is only needed to spell out numbers in prompts with videos."""
    module = importlib.import_module(cls.__module__)
    if getattr(module, "num2words", "absent") is None:
        module.num2words = str  # type: ignore[attr-defined]
