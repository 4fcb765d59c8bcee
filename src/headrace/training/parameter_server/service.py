"""Request handling of a parameter server; every request is validated first.

Trainers `begin` a model, push `gradients` and `wait` for parameters. A reply comes soon even if
other trainers are late: it then lists the missing ranks, so that a server without a reply is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError

from headrace.core.errors import SpecError
from headrace.core.validation_errors import first_problem
from headrace.core.values import Value
from headrace.rpc.config import RpcLimits
from headrace.rpc.framing import Fields, Message
from headrace.rpc.service import RpcService
from headrace.training import gradient_codec
from headrace.training.parameter_server.optimizer_specs import OPTIMIZERS, check_options
from headrace.training.parameter_server.rounds import Done, GradientPush, ModelRounds, Shape
from headrace.training.parameter_server.trial import try_step

MAX_MODELS = 256
ANSWER_S = 2.0
"""Maximum time of a reply, also while other trainers are missing."""

Number = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Model = Annotated[int, Field(strict=True, ge=0, lt=MAX_MODELS)]
Name = Annotated[str, Field(strict=True, max_length=100)]
Groups = Annotated[list[dict[Name, Any]], Field(min_length=1, max_length=1000)]


class Begin(Value):
    """Register a model; rank 0 also sends its values."""

    op: Literal["begin"]
    model: Model
    rank: Number
    optimizer: Literal[OPTIMIZERS]  # type: ignore[valid-type]
    options: Groups
    dtype: Literal["float32", "float64"]


class Gradients(Value):
    """Push gradients; rank 0 also sends options, and values if its script changed them."""

    op: Literal["gradients"]
    model: Model
    rank: Number
    step: Annotated[int, Field(strict=True, ge=1, lt=2**53)]
    iteration: Number
    holds: Annotated[bool, Field(strict=True)] = False
    options: Groups | None = None


class Scale(Value):
    """Make a held step with scaled gradients."""

    op: Literal["scale"]
    model: Model
    step: Annotated[int, Field(strict=True, ge=1, lt=2**53)]
    factor: Annotated[float, Field(ge=0, le=1)]


class Wait(Value):
    """Wait for the parameters after a step, or for the squared norm of its gradients."""

    op: Literal["wait"]
    model: Model
    step: Number
    holds: Annotated[bool, Field(strict=True)] = False


class Names(Value):
    """List the names of the optimizer state."""

    op: Literal["names"]
    model: Model


class State(Value):
    """Get the optimizer state of a name."""

    op: Literal["state"]
    model: Model
    name: Name


class Forget(Value):
    """Clear the optimizer state."""

    op: Literal["forget"]
    model: Model


class Load(Value):
    """Set the optimizer state of a name."""

    op: Literal["load"]
    model: Model
    name: Annotated[str, Field(strict=True, pattern=r"^[a-z_]{1,40}$")]


class Ping(Value):
    """Check that the server is alive."""

    op: Literal["ping"]


Request = Begin | Gradients | Scale | Wait | Names | State | Forget | Load | Ping
_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])

Answer = tuple[Fields, tuple[np.ndarray, ...]]


class ParameterService(RpcService):
    """Handles the requests of trainers."""

    def __init__(
        self,
        num_trainers: int,
        limits: RpcLimits,
        clock: Callable[[], float],
        done: Done = lambda _n, _start_s, _end_s: None,
        answer_s: float = ANSWER_S,
    ) -> None:
        super().__init__()
        self._limits = limits
        self._num_trainers = num_trainers
        self._now, self._done, self._answer_s = clock, done, answer_s
        self._models: dict[int, ModelRounds] = {}

    def answer(self, request: Message) -> Message:
        """Handle a request."""
        asked = _parse(request.fields)
        self.count(asked.op)
        fields, arrays = self._answer(asked, request.arrays)
        return Message(request.number, fields, arrays)

    def _answer(self, asked: Request, arrays: Sequence[np.ndarray]) -> Answer:
        match asked:
            case Ping():
                _expect(arrays, 0)
                return {}, ()
            case Begin():
                return self._begin(asked, arrays)
            case Gradients():
                return self._gradients(asked, arrays)
            case Wait():
                _expect(arrays, 0)
                rounds = self._rounds(asked.model)
                return self._wait_for_result(rounds, asked.step, self._now(), asked.holds)
            case Scale():
                _expect(arrays, 0)
                began_s, rounds = self._now(), self._rounds(asked.model)
                rounds.scale(asked.step, asked.factor)
                return self._wait_for_result(rounds, asked.step, began_s)
            case Names():
                _expect(arrays, 0)
                return {"names": self._rounds(asked.model).with_shard().state_names()}, ()
            case State():
                _expect(arrays, 0)
                return {}, self._rounds(asked.model).with_shard().state(asked.name)
            case Forget():
                _expect(arrays, 0)
                self._rounds(asked.model).with_shard().forget()
            case Load():
                values, has = _expect(arrays, 2)
                self._rounds(asked.model).with_shard().load(asked.name, values, has)
        return {}, ()

    def _begin(self, asked: Begin, arrays: Sequence[np.ndarray]) -> Answer:
        began_s = self._now()
        self._check_rank(asked.rank)
        options = check_options(asked.optimizer, asked.options)
        lengths, groups, *values = _expect(arrays, 2 if asked.rank else 3)
        shape = Shape(
            asked.optimizer,
            len(options),
            _whole(lengths, 1, self._limits.max_request_bytes),
            _whole(groups, 0, len(options) - 1),
            asked.dtype,
        )
        if len(shape.lengths) != len(shape.groups):
            raise SpecError("pieces and groups differ in number", "send one group per piece")
        if shape.num_elements * np.dtype(shape.dtype).itemsize > self._limits.max_request_bytes:
            raise SpecError(
                f"a shard has {shape.num_elements} elements, too many for one server",
                "plan the job with more parameter servers",
            )
        for value in values:
            if (value.shape, value.dtype) != ((shape.num_elements,), np.dtype(shape.dtype)):
                raise SpecError("values have a wrong shape or dtype", "send one per element")
        for each in {repr(each): each for each in options}.values():
            try_step(asked.optimizer, each, getattr(torch, asked.dtype))
        with self._lock:
            rounds = self._models.setdefault(
                asked.model, ModelRounds(self._num_trainers, shape, self._now, self._done)
            )
        if rounds.shape != shape:
            raise SpecError(
                f"rank {asked.rank} has a different model or optimizer than other ranks",
                "prepare the same models on all trainers, in the same order",
            )
        if values:
            rounds.begin(options, values[0])
        return self._wait_for_result(rounds, 0, began_s)

    def _gradients(self, asked: Gradients, arrays: Sequence[np.ndarray]) -> Answer:
        began_s = self._now()
        self._check_rank(asked.rank)
        rounds = self._rounds(asked.model)
        options = None
        if asked.options is not None:
            options = check_options(rounds.shape.optimizer, asked.options)
            if len(options) != rounds.shape.num_groups:
                raise SpecError("the number of parameter groups changed", "prepare them again")
        gradients, present, *values = _expect(arrays, 2, 3)
        gradients = _decoded(gradients, rounds.shape)
        changed = values[0] if values else None
        gradient_push = GradientPush(gradients, present, asked.holds, options, changed)
        rounds.push(asked.rank, asked.step, asked.iteration, gradient_push)
        return self._wait_for_result(rounds, asked.step, began_s, asked.holds)

    def _wait_for_result(
        self, rounds: ModelRounds, step: int, began_s: float, holds: bool = False
    ) -> Answer:
        """The parameters, the squared norm, or the missing ranks."""
        values = None if holds else rounds.values(step, self._answer_s)
        square = rounds.square(step, self._answer_s) if holds else None
        held = {"held_s": round(self._now() - began_s, 6)}
        if square is not None:
            return {"square": square, **held}, ()
        if values is None:
            return {"missing": rounds.missing()[:100], **held}, ()
        return held, (values,)

    def _rounds(self, model: int) -> ModelRounds:
        with self._lock:
            rounds = self._models.get(model)
        if rounds is None:
            raise SpecError(f"there is no model {model}", "begin it first")
        return rounds

    def _check_rank(self, rank: int) -> None:
        if rank >= self._num_trainers:
            raise SpecError(
                f"invalid rank {rank}, there are {self._num_trainers} trainers", "use another rank"
            )


def _parse(fields: Fields) -> Request:
    try:
        return _REQUESTS.validate_python(dict(fields))
    except ValidationError as error:
        raise SpecError(
            f"invalid request to a parameter server: {first_problem(error)}",
            "use the same headrace version everywhere",
        ) from None


def _expect(arrays: Sequence[np.ndarray], *nums: int) -> Sequence[np.ndarray]:
    if len(arrays) not in nums:
        raise SpecError(f"the request has {len(arrays)} arrays", f"send {nums[0]}")
    return arrays


def _decoded(gradients: np.ndarray, shape: Shape) -> np.ndarray:
    """Gradients, which may be sent in 8 bits."""
    num_bytes = gradient_codec.packed_bytes(shape.num_elements)
    if gradients.dtype != np.uint8 or gradients.shape != (num_bytes,):
        return gradients
    return gradient_codec.decode(gradients, shape.num_elements).astype(shape.dtype, copy=False)


def _whole(array: np.ndarray, least: int, most: int) -> tuple[int, ...]:
    is_right = array.ndim == 1 and array.dtype == np.int64
    if not is_right or (len(array) and not least <= array.min() <= array.max() <= most):
        raise SpecError("invalid description of pieces", f"send integers {least} to {most}")
    return tuple(array.tolist())
