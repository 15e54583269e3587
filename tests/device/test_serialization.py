"""torch.save and load, pickling, copying."""

import copy
import io
import pickle

import pytest
import torch


def _saved(obj) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return file


def _x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(weights_only):
    loaded = torch.load(_saved(_x().to("tpu")), weights_only=weights_only)
    assert loaded.device == torch.device("tpu:0")
    assert torch.equal(loaded.cpu(), _x())


@pytest.mark.parametrize(
    ("source", "location", "target"),
    [
        ("tpu", "cpu", "cpu"),
        ("cpu", "tpu", "tpu"),
        ("cpu", "tpu:0", "tpu"),
        ("tpu", torch.device("tpu"), "tpu"),
        ("tpu", {"tpu:0": "cpu"}, "cpu"),
        ("tpu", lambda storage, where: storage.tpu(), "tpu"),
    ],
)
def test_map_location(source, location, target):
    loaded = torch.load(_saved(_x().to(source)), map_location=location)
    assert loaded.device.type == target
    assert torch.equal(loaded.cpu(), _x())


def test_missing_device_is_named():
    file = _saved(_x())
    with pytest.raises(RuntimeError, match=r"device 99 but torch.tpu.device_count\(\) is"):
        torch.load(file, map_location="tpu:99")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes(dtype):
    x = _x().to(dtype)
    assert torch.equal(torch.load(_saved(x.to("tpu"))).cpu(), x)


def test_shared_storage_stays_shared():
    x = _x().to("tpu")
    loaded, view = torch.load(_saved([x, x[1:]]))
    view.zero_()
    assert loaded[1:].cpu().abs().sum() == 0
    assert torch.equal(loaded[0].cpu(), _x()[0])


def test_state_dict_and_optimizer():
    model = torch.nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="tpu")).sum().backward()
    optimizer.step()
    state = torch.load(_saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight, model.weight.cpu())
    fresh = torch.optim.Adam(model.parameters())
    fresh.load_state_dict(state["optimizer"])
    assert fresh.state_dict()["state"][0]["exp_avg"].is_tpu


def test_pickle():
    x = torch.nn.Parameter(_x().to("tpu"))
    y = pickle.loads(pickle.dumps(x))
    assert isinstance(y, torch.nn.Parameter) and y.is_tpu and y.requires_grad
    assert torch.equal(y.detach().cpu(), _x())


def test_deepcopy():
    model = torch.nn.Linear(4, 2).to("tpu")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.zero_()
    assert model.weight.detach().cpu().abs().sum() > 0
    x = _x().to("tpu")
    a, b = copy.deepcopy([x, x[0]])
    b.fill_(5)
    assert a[0].cpu().tolist() == [5.0] * 4
    assert torch.equal(x.cpu(), _x())
    assert torch.equal(copy.copy(x).cpu(), _x())


def test_storages():
    x = _x().to("tpu")
    storage = x.untyped_storage()
    assert storage.is_tpu and storage.device == torch.device("tpu:0") and storage.nbytes() == 48
    assert bytes(storage.cpu().tolist()) == bytes(_x().untyped_storage().tolist())
    assert _x().untyped_storage().tpu().is_tpu
    assert storage.clone().data_ptr() != storage.data_ptr()
