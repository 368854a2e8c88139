"""Environments and tools that show pictures, for the tests."""

from PIL import Image


class Mirror:
    """Shows the row's picture, then that picture turned; a third step shows what cannot be shown."""

    def reset(self, row, seed):
        self.row, self.steps = row, 0
        assert isinstance(row["image"], Image.Image)
        return row["prompt"]

    def step(self, message):
        self.steps += 1
        if self.steps == 2:
            return [], 1.0, True
        turned = self.row["image"].transpose(Image.Transpose.ROTATE_180)
        return {"role": "user", "content": ["Turned: ", {"type": "image", "image": turned}]}, 0.0, False
