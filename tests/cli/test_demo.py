import json

from PIL import Image


def test_demo_writes_rows_and_histograms(oodles_run, tmp_path):
    code, out, err = oodles_run("demo", "--out", tmp_path / "demo")
    assert code == 0, err
    assert "dice(0.9)" in out
    assert {row["ood_set"] for row in json.loads((tmp_path / "demo" / "rows.json").read_text())} >= {"svhn", "textures"}
    assert out.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
    with Image.open(tmp_path / "demo" / "scores.png") as picture:
        picture.load()
