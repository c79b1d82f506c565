"""Helpers for tests that a model, or features, are exactly as they were."""

import torch
from support.networks import Net, seeded


def same(one, other):
    assert len(one) == len(other)
    assert torch.equal(one.embedding, other.embedding)
    assert torch.equal(one.logits, other.logits)
    assert one.layers.keys() == other.layers.keys()
    assert all(torch.equal(one.layers[name], other.layers[name]) for name in one.layers)
    assert (one.labels is None) == (other.labels is None)
    assert one.labels is None or torch.equal(one.labels, other.labels)
    assert (one.head is None) == (other.head is None)
    assert one.head is None or one.head.same_as(other.head)


def lived_in():
    """A model in use: mixed train and eval modes, frozen parts, gradients, hooks, channels-last."""
    model = seeded(Net)
    model.train()
    model.body.bn1.eval()
    model.fc.requires_grad_(False)
    model.body.conv1.to(memory_format=torch.channels_last)
    model.body.conv2.weight.grad = torch.ones_like(model.body.conv2.weight)
    model.fc.register_forward_hook(lambda *_: None)
    model.body.register_forward_pre_hook(lambda *_: None)
    return model


def portrait(model):
    """Everything about a model that must not change, including the identities of its parameters and hooks."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            (name, kind): dict(found)
            for name, module in model.named_modules()
            for kind, found in vars(module).items()
            if "_hooks" in kind
        },
        "identity": {name: (id(tensor), tensor.data_ptr()) for name, tensor in tensors.items()},
        "layout": {name: (tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors.items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "grad": {name: None if tensor.grad is None else id(tensor.grad) for name, tensor in tensors.items()},
        "grad_mode": torch.is_grad_enabled(),
        "random": torch.get_rng_state().tolist(),
    }


def numbers(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
