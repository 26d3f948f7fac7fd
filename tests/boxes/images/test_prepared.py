import asyncio
import threading

import pytest

from agentloop.boxes.images.prepared import PreparedImages
from agentloop.boxes.interface.spec import Image

ONE = Image(reference="one")


async def test_an_image_is_made_once_for_boxes_that_start_together_and_later():
    made = []
    images = PreparedImages(lambda image: made.append(image) or len(made))
    assert await asyncio.gather(*(images.get(ONE) for _ in range(8))) == [1] * 8
    assert await images.get(ONE) == 1
    assert await images.get(Image(reference="two")) == 2


async def test_an_image_that_failed_is_made_again():
    answers = iter([OSError("full"), "made"])

    def make(_: Image) -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    images = PreparedImages(make)
    failed = await asyncio.gather(images.get(ONE), images.get(ONE), return_exceptions=True)
    assert [str(each) for each in failed] == ["full", "full"]
    assert await images.get(ONE) == "made"


async def test_a_cancelled_caller_does_not_end_the_making_for_others():
    may_end = threading.Event()
    images = PreparedImages(lambda image: may_end.wait(10))
    first, second = asyncio.create_task(images.get(ONE)), asyncio.create_task(images.get(ONE))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_end.set()
    assert await second is True
