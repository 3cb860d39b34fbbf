"""Dtypes that reduces support, by their names in the stores, numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
NAMES_OF_TORCH = {torch_name: name for name, torch_name in TORCH_NAMES.items()}


def learn_bfloat16(dtype: np.dtype[Any]) -> str | None:
    """Adds bfloat16 on first use: ml_dtypes is optional."""
    if dtype.name != "bfloat16":
        return None
    NAMES[dtype] = "bf16"
    DTYPES["bf16"] = dtype
    return "bf16"


def bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            'numpy needs the package ml_dtypes for bfloat16; or get it as framework="torch"'
        ) from error
    return DTYPES.setdefault("bf16", np.dtype(ml_dtypes.bfloat16))
