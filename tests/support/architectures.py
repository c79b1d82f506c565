"""Architectures with random weights whose heads are searched: from libraries, reduced in size, and written by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from support import torchvision_operators  # noqa: F401  (before timm and transformers, which import torchvision)
from support.head_survey import Architecture, Finished, Inputs
from support.written_heads import BY_HAND
from torch import Tensor, nn

CLASSES = 10
SLOW = {
    *("resnext50", "wide_resnet50", "vgg11_bn", "alexnet", "efficientnet_b0", "regnet_y_400mf", "googlenet"),
    *("inception_v3", "levit_128s", "swin_tiny_patch4_window7_224", "efficientvit_b0", "ghostnet_050"),
    *("mixer_s32_224", "resmlp_12_224", "poolformer_s12", "swiftformer_xs", "coatnet_pico_rw_224", "hiera_tiny_224"),
    *("nest_tiny", "repvit_m0_9", "tiny_vit_5m_224", "volo_d1_224"),
}
"""Models that take more than half a second on one core."""


def images(size: int, *, key: str | None = None, frames: tuple[int, ...] = ()) -> Inputs:
    """Square images of noise, or clips of them, by position or as a keyword argument."""

    def draw(rows: int, generator: torch.Generator) -> Any:
        made = torch.randn(rows, 3, *frames, size, size, generator=generator)
        return made if key is None else {key: made}

    return draw


# torchvision ------------------------------------------------------------------------------------------------------


def _torchvision(build: str, **options: Any) -> Callable[[], nn.Module]:
    """A function or class of ``torchvision.models``, named by its path in there."""

    def make() -> nn.Module:
        from torchvision import models

        found: Any = models
        for part in build.split("."):
            found = getattr(found, part)
        return found(num_classes=CLASSES, **options)

    return make


def _residual(**options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models.resnet import Bottleneck, ResNet

        return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, **options)

    return make


def _convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=CLASSES)


def _vgg() -> nn.Module:
    from torchvision.models.vgg import VGG, make_layers

    return VGG(make_layers([16, "M", 32, "M", 512], batch_norm=True), num_classes=CLASSES)


VIT = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
SWIN = {"patch_size": [4, 4], "embed_dim": 24, "depths": [1] * 3, "num_heads": [2] * 3, "window_size": [4, 4]}
MAXVIT = {"input_size": (32, 32), "stem_channels": 16, "partition_size": 2, "block_channels": [16, 32]}
MAXVIT |= {"block_layers": [1, 1], "head_dim": 8, "stochastic_depth_prob": 0.0}
VISION = {
    "resnet18": (_torchvision("resnet18"), 32),
    "resnext50": (_residual(groups=32, width_per_group=4), 32),
    "wide_resnet50": (_residual(width_per_group=128), 32),
    "densenet": (_torchvision("DenseNet", growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16), 32),
    "vgg11_bn": (_vgg, 32),
    "alexnet": (_torchvision("alexnet"), 64),
    "squeezenet1_0": (_torchvision("squeezenet1_0"), 64),
    "mobilenet_v2": (_torchvision("mobilenet_v2"), 32),
    "mobilenet_v3_small": (_torchvision("mobilenet_v3_small"), 32),
    "efficientnet_b0": (_torchvision("efficientnet_b0"), 32),
    "regnet_y_400mf": (_torchvision("regnet_y_400mf"), 32),
    "shufflenet_v2_x0_5": (_torchvision("shufflenet_v2_x0_5"), 32),
    "mnasnet0_5": (_torchvision("mnasnet0_5"), 32),
    "googlenet": (_torchvision("googlenet", init_weights=False), 32),
    "inception_v3": (_torchvision("inception_v3", init_weights=False), 75),
    "convnext": (_convnext, 32),
    "vit": (_torchvision("VisionTransformer", **VIT), 32),
    "swin": (_torchvision("SwinTransformer", **SWIN), 32),
    "maxvit": (_torchvision("MaxVit", **MAXVIT), 32),
}


NO_PRETRAINED = {"weights": None, "weights_backbone": None}
TORCHVISION = [
    *(
        Architecture("torchvision", name, make, images(size), slow=name in SLOW)
        for name, (make, size) in VISION.items()
    ),
    Architecture("torchvision", "r3d_18 (video)", _torchvision("video.r3d_18"), images(16, frames=(2,)), slow=True),
    Architecture(
        "torchvision",
        "lraspp_mobilenet_v3_large (segmentation)",
        _torchvision("segmentation.lraspp_mobilenet_v3_large", **NO_PRETRAINED),
        images(32),
        remedy=lambda network: Finished(network, lambda output: output["out"].mean(dim=(2, 3))),
        classifier=False,
    ),
    Architecture(
        "torchvision",
        "ssdlite320_mobilenet_v3_large (detection)",
        # no box passes this threshold, because suppressing overlaps needs torchvision's compiled operators
        _torchvision("detection.ssdlite320_mobilenet_v3_large", **NO_PRETRAINED, score_thresh=1.0),
        images(32),
        classifier=False,
        slow=True,
    ),
]

# timm -------------------------------------------------------------------------------------------------------------


def _timm(name: str, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=CLASSES, **options)

    return make


SMALL_VIT = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 2}
TIMM_MODELS: dict[str, tuple[int, Mapping[str, Any]]] = {
    "test_resnet": (32, {}),
    "test_vit": (32, {"img_size": 32}),
    "test_vit3": (32, {"img_size": 32}),
    "test_convnext": (32, {}),
    "test_efficientnet": (32, {}),
    "test_byobnet": (32, {}),
    "test_nfnet": (32, {}),
    "test_mambaout": (32, {}),
    "deit_tiny_distilled_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "cait_xxs24_224": (32, {"img_size": 32, "depth": 2}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "depth": 2}),
    "beit_base_patch16_224": (32, SMALL_VIT),
    "naflexvit_base_patch16_gap": (32, SMALL_VIT),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2}),
    "convnextv2_atto": (32, {"depths": (1, 1, 1, 1)}),
    "levit_128s": (64, {"img_size": 64}),
    "pit_ti_distilled_224": (64, {"img_size": 64}),
    "swin_tiny_patch4_window7_224": (56, {"img_size": 56, "depths": (1, 1, 1, 1)}),
    "edgenext_xx_small": (32, {}),
    "efficientvit_b0": (32, {}),
    "ghostnet_050": (32, {}),
    "mixer_s32_224": (32, {"img_size": 32}),
    "resmlp_12_224": (32, {"img_size": 32}),
    "mobilevit_xxs": (32, {}),
    "poolformer_s12": (32, {"layers": (1, 1, 1, 1)}),
    "inception_next_atto": (32, {}),
    "swiftformer_xs": (64, {}),
    "coatnet_pico_rw_224": (64, {"img_size": 64}),
    "hiera_tiny_224": (64, {"img_size": (64, 64)}),
    "nest_tiny": (64, {"img_size": 64}),
    "repvit_m0_9": (32, {}),
    "tiny_vit_5m_224": (64, {}),
    "volo_d1_224": (64, {"img_size": 64}),
}
TIMM = [
    Architecture("timm", name, _timm(name, options), images(size), slow=name in SLOW)
    for name, (size, options) in TIMM_MODELS.items()
]

# transformers -----------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = SMALL | TOKENS
PICTURE = SMALL | {"image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SOUND = SMALL | {"conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8), "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16}
SEQUENCE = TOKENS | {"d_model": 32}
BART = SEQUENCE | {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 2, "max_position_embeddings": 64}
CLIP = {"vision_config": PICTURE, "text_config": TEXT, "projection_dim": 16}


def sentences(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Sentences of different lengths, padded on the right, each with an end token."""
    longest = 5 + rows
    ids = torch.randint(3, 50, (rows, longest), generator=generator)
    lengths = longest - torch.arange(rows)
    place = torch.arange(longest)
    ids[place == lengths[:, None] - 1] = 2
    mask = (place < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def sentences_without_mask(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The same for a model that takes no attention mask."""
    return {"input_ids": sentences(rows, generator)["input_ids"]}


def recordings(key: str, *shape: int) -> Inputs:
    """Sounds as waveforms or spectrograms of the given shape."""
    return lambda rows, generator: {key: torch.randn(rows, *shape, generator=generator)}


def _hugging_face(name: str, model: str, options: Mapping[str, Any], inputs: Inputs, **more: Any) -> Architecture:
    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, model)
        return kind(kind.config_class(**{"num_labels": CLASSES} | dict(options)))

    return Architecture("transformers", name, make, inputs, lambda output: output.logits, **more)


def _zero_shot() -> nn.Module:
    """CLIP as a zero-shot classifier: the embeddings of ten class names are its last layer."""
    import transformers

    class ZeroShot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clip = transformers.CLIPModel(transformers.CLIPConfig(**CLIP))
            with torch.no_grad():
                names = self.clip.get_text_features(torch.randint(3, 50, (CLASSES, 6))).pooler_output
            self.register_buffer("names", nn.functional.normalize(names))

        def forward(self, pixels: Tensor) -> Tensor:
            embedding = nn.functional.normalize(self.clip.get_image_features(pixels).pooler_output)
            return self.clip.logit_scale.exp() * embedding @ self.names.T

    return ZeroShot()


PIXELS = images(32, key="pixel_values")
DISTIL = {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
GPT = TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 2}
OPT = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
OPT |= {"word_embed_proj_dim": 32, "pad_token_id": 0}
T5 = SEQUENCE | {"d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
WHISPER = BART | {"num_mel_bins": 8, "max_source_positions": 30, "classifier_proj_size": 16}
XLNET = {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
SPECTROGRAM = SMALL | {"patch_size": 4, "max_length": 20, "num_mel_bins": 12, "frequency_stride": 4, "time_stride": 4}
GROUPED = TEXT | {"num_key_value_heads": 2}
FNET = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
TEXT_MODELS = {
    "BERT": ("Bert", TEXT),
    "RoBERTa": ("Roberta", TEXT),
    "DistilBERT": ("DistilBert", DISTIL),
    "ALBERT": ("Albert", TEXT | {"embedding_size": 16}),
    "DeBERTa-v2": ("DebertaV2", TEXT),
    "ELECTRA": ("Electra", TEXT | {"embedding_size": 16}),
    "XLNet": ("XLNet", XLNET),
    "GPT-2": ("GPT2", GPT),
    "OPT": ("OPT", OPT),
    "Llama": ("Llama", GROUPED),
    "Mixtral (mixture of experts)": ("Mixtral", GROUPED | {"num_local_experts": 4}),
    "T5": ("T5", T5),
    "BART": ("Bart", BART),
}
PICTURE_MODELS = {
    "ViT": ("ViT", PICTURE),
    "BEiT": ("Beit", PICTURE),
    "DINOv2": ("Dinov2", PICTURE),
    "Swin": ("Swin", WINDOWS),
    "ConvNeXt": ("ConvNext", STAGES),
    "ResNet": ("ResNet", STAGES | {"embedding_size": 8}),
    "CLIP with a classifier": ("CLIP", CLIP),
    "SigLIP with a classifier": ("Siglip", CLIP),
}
TRANSFORMERS = [
    *(
        _hugging_face(name, f"{family}ForSequenceClassification", options, sentences)
        for name, (family, options) in TEXT_MODELS.items()
    ),
    *(
        _hugging_face(name, f"{family}ForImageClassification", options, PIXELS)
        for name, (family, options) in PICTURE_MODELS.items()
    ),
    _hugging_face(
        "BERT, one label",
        "BertForSequenceClassification",
        TEXT | {"num_labels": 1},
        sentences,
        finish=lambda logits: logits[:, 1:],
    ),
    _hugging_face("FNet", "FNetForSequenceClassification", FNET, sentences_without_mask),
    _hugging_face(
        "BERT for tokens",
        "BertForTokenClassification",
        TEXT,
        sentences,
        remedy=lambda network: Finished(network, lambda output: output.logits.mean(dim=1)),
        classifier=False,
    ),
    _hugging_face("DeiT with teacher", "DeiTForImageClassificationWithTeacher", PICTURE, PIXELS),
    Architecture("transformers", "CLIP, zero-shot (wrapped)", _zero_shot, images(32)),
    _hugging_face("Wav2Vec2", "Wav2Vec2ForSequenceClassification", SOUND, recordings("input_values", 800)),
    _hugging_face("HuBERT", "HubertForSequenceClassification", SOUND, recordings("input_values", 800)),
    _hugging_face("Whisper", "WhisperForAudioClassification", WHISPER, recordings("input_features", 8, 60)),
    _hugging_face("AST (spectrograms)", "ASTForAudioClassification", SPECTROGRAM, recordings("input_values", 20, 12)),
]


ARCHITECTURES = [*TORCHVISION, *TIMM, *TRANSFORMERS, *BY_HAND]
