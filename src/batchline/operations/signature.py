"""The signature of a function as that of an operation: the types of its items and results, and its context.

Only the annotations of the item and the result are resolved. That of the context may be imported for type
checkers only.
"""

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, ForwardRef, Never, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec

from batchline.operations.context import Context
from batchline.operations.errors import InvalidApp
from batchline.operations.outcomes import Fail, Parked, Retry

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OUTCOMES = (Retry, Fail, Parked)


class OperationSignature(msgspec.Struct, frozen=True):
    """`context` is the name of the parameter that gets the context; None: there is none."""

    item_type: Any
    result_type: Any
    context: str | None = None
    context_by_keyword: bool = False


def signature_of(function: Callable[..., Any], *, chunk: bool) -> OperationSignature:
    """The signature of an operation. Raises InvalidApp."""
    name = getattr(function, "__name__", repr(function))
    signature = _signature(function, name)
    item, others = _first(list(signature.parameters.values()))
    if item is None or item.kind not in _POSITIONAL or _is_context(item):
        raise InvalidApp(f"{name} needs a first parameter for the item, such as {name}(item)")
    context, _ = _first([each for each in others[:1] if _is_context(each)])
    for other in others:
        if other is not context and other.kind not in _VARIABLE and other.default is other.empty:
            raise InvalidApp(
                f"{name} has a parameter {other.name!r} that gets no value; an operation has an item and,"
                " if it is annotated Context or named ctx, a context"
            )
    item_type = _resolved(function, name, item.name, item.annotation)
    result_type = _resolved(function, name, "return", signature.return_annotation)
    if chunk:
        item_type = _element(name, f"parameter {item.name!r}", item_type)
        result_type = _element(name, "result", result_type)
    return OperationSignature(
        item_type,
        _without_outcomes(result_type),
        None if context is None else context.name,
        context is not None and context.kind is inspect.Parameter.KEYWORD_ONLY,
    )


def _first(
    parameters: list[inspect.Parameter],
) -> tuple[inspect.Parameter | None, list[inspect.Parameter]]:
    return (parameters[0], parameters[1:]) if parameters else (None, [])


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.FORWARDREF)
        return inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidApp(f"the parameters of {name} cannot be read: {error}") from error


def _is_context(parameter: inspect.Parameter) -> bool:
    if parameter.kind in _VARIABLE:
        return False
    annotation = parameter.annotation
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        is_annotated = annotation.strip("\"'").split("[")[0].split(".")[-1] == "Context"
    else:
        is_annotated = (get_origin(annotation) or annotation) is Context
    return is_annotated or parameter.name == "ctx"


def _resolved(function: Callable[..., Any], name: str, what: str, annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={what: annotation})
    target = inspect.unwrap(function)
    try:
        local = inspect.getclosurevars(target).nonlocals if inspect.isfunction(target) else {}
        names = dict(getattr(target, "__globals__", {}))
        return get_type_hints(holder, names, dict(local), include_extras=True)[what]
    except Exception as error:
        where = "the result" if what == "return" else f"parameter {what!r}"
        raise InvalidApp(
            f"the annotation of {where} of {name} cannot be resolved: {error}. Use a type that is"
            " defined or imported at module level"
        ) from error


def _element(name: str, what: str, annotation: Any) -> Any:
    """The type of the elements of a list."""
    if annotation is Any:
        return Any
    origin = get_origin(annotation) or annotation
    if not (isinstance(origin, type) and issubclass(list, origin)) or origin is object:
        raise InvalidApp(f"{name} has chunk, so its {what} must be annotated as a list, or not at all")
    return next(iter(get_args(annotation)), Any)


def _without_outcomes(annotation: Any) -> Any:
    """The type of values: a handler may also return a Parked, or in a chunk a Retry or a Fail."""
    if annotation in (Never, NoReturn, *_OUTCOMES):
        return Any
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    values: Sequence[Any] = [each for each in get_args(annotation) if each not in _OUTCOMES]
    return Union[tuple(values)] if values else Any  # noqa: UP007
