"""Kernels that encode feature rows and decode them into a batch.

Words are the bits of values as unsigned integers, so that lossless encodings keep every NaN and the
sign of zero. A `sparse` row is a count of non-zero words, their positions, and their values unless
all are equal; each position has one 16-bit unit, or two in rows of 65,536 values and more.
"""

from __future__ import annotations

import numpy as np
from numba import njit

HEADER_BYTES = 8
"""Scale and offset of a quantised row, `float32` each."""

FLOAT32_MAX = float(np.finfo(np.float32).max)

WIDE = 1 << 16
"""Rows of this many values and more have positions of two units."""


@njit(nogil=True, cache=True)
def find_words(words, found, num_found):
    """Add distinct words to `found` until it is full; returns their number."""
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            word = words[i, j]
            is_new = True
            for k in range(num_found):
                if found[k] == word:
                    is_new = False
                    break
            if is_new:
                if num_found == len(found):
                    return num_found
                found[num_found] = word
                num_found += 1
    return num_found


@njit(nogil=True, cache=True)
def count_nonzero(words, counts):
    """Count the non-zero words of every row."""
    for i in range(words.shape[0]):
        count = 0
        for j in range(words.shape[1]):
            count += words[i, j] != 0
        counts[i] = count


@njit(nogil=True, cache=True)
def encode_bits(words, zero, one, out):
    """Set the bit of every word that equals `one`; `out` is zero.

    Returns the first row with a word that is neither `zero` nor `one`, or -1.
    """
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            if words[i, j] == one:
                out[i, j >> 3] |= np.uint8(1 << (j & 7))
            elif words[i, j] != zero:
                return i
    return -1


@njit(nogil=True, cache=True)
def decode_bits(encoded, rows, positions, zero, one, out):
    """Decode some rows of two distinct words to their positions."""
    width = out.shape[1]
    for i in range(len(positions)):
        row, at = rows[i], positions[i]
        for j in range(width):
            is_one = (encoded[row, j >> 3] >> np.uint8(j & 7)) & 1
            out[at, j] = one if is_one else zero


@njit(nogil=True, cache=True)
def encode_sparse(words, value_units, constant, units):
    """Write rows one after another.

    `value_units` is 0 if all non-zero words are `constant`. Returns the first row with another one,
    or -1.
    """
    width, end = words.shape[1], 0
    position_units = 2 if width >= WIDE else 1
    for i in range(words.shape[0]):
        count = 0
        for j in range(width):
            count += words[i, j] != 0
        at = end + position_units
        values_at = at + count * position_units
        units[end] = count & 0xFFFF
        if position_units == 2:
            units[end + 1] = count >> 16
        for j in range(width):
            word = np.uint64(words[i, j])
            if word != 0:
                if value_units == 0 and word != constant:
                    return i
                units[at] = j & 0xFFFF
                if position_units == 2:
                    units[at + 1] = j >> 16
                at += position_units
                for unit in range(value_units):
                    units[values_at] = (word >> np.uint64(16 * unit)) & np.uint64(0xFFFF)
                    values_at += 1
        end = values_at
    return -1


@njit(nogil=True, cache=True)
def find_starts(units, width, value_units, starts):
    """Find the first unit of every row, and the end; returns False if the rows do not fit."""
    position_units = 2 if width >= WIDE else 1
    at = 0
    for i in range(len(starts) - 1):
        starts[i] = at
        if at + position_units > len(units):
            return False
        count = np.int64(units[at])
        if position_units == 2:
            count |= np.int64(units[at + 1]) << 16
        at += position_units + count * (position_units + value_units)
    starts[-1] = at
    return at == len(units)


@njit(nogil=True, cache=True)
def decode_sparse(units, starts, rows, positions, value_units, constant, out):
    """Decode some rows to their positions; returns False if a row is damaged."""
    width = out.shape[1]
    position_units = 2 if width >= WIDE else 1
    for i in range(len(positions)):
        begin, end, at = starts[rows[i]], starts[rows[i] + 1], positions[i]
        if begin < 0 or end > len(units) or begin + position_units > end:
            return False
        count = np.int64(units[begin])
        if position_units == 2:
            count |= np.int64(units[begin + 1]) << 16
        first = begin + position_units
        values = first + count * position_units
        if values + count * value_units != end:
            return False
        for j in range(width):
            out[at, j] = 0
        last = np.int64(-1)
        for k in range(count):
            j = np.int64(units[first + k * position_units])
            if position_units == 2:
                j |= np.int64(units[first + 2 * k + 1]) << 16
            if j <= last or j >= width:
                return False
            last = j
            word = constant
            for unit in range(value_units):
                word |= np.uint64(units[values + k * value_units + unit]) << np.uint64(16 * unit)
            out[at, j] = word
    return True


@njit(nogil=True, cache=True)
def copy_sparse(units, starts, rows, out):
    """Concatenate some rows; returns False if an offset is out of range."""
    at = 0
    for row in rows:
        begin, end = starts[row], starts[row + 1]
        if begin < 0 or end > len(units) or end - begin > len(out) - at:
            return False
        for k in range(begin, end):
            out[at] = units[k]
            at += 1
    return True


@njit(nogil=True, cache=True)
def move_sparse(units, starts, rows, targets, out):
    """Copy some rows; `targets` are their first units in `out`."""
    for i in range(len(rows)):
        begin, at = starts[rows[i]], targets[i]
        for k in range(starts[rows[i] + 1] - begin):
            out[at + k] = units[begin + k]


@njit(nogil=True, cache=True)
def fit_rows(lengths, end, capacity, targets):
    """Assign rows the units from `end` on while they fit, else -1; returns the new end."""
    for i in range(len(lengths)):
        targets[i] = -1
        if end + lengths[i] <= capacity:
            targets[i] = end
            end += lengths[i]
    return end


@njit(nogil=True, cache=True)
def encode_quantised(values, levels, encoded, headers):
    """Round values to `levels + 1` equal steps from the least to the greatest of each row.

    Args:
        values: `float32` rows.
        levels: 255 for a byte per value, 15 for half a byte.
        encoded: Receives the rows, `uint8`; zero.
        headers: The same memory as `float32`: scale and offset come first.

    Returns:
        The first row with a value that is not finite, or whose range is not, or -1.
    """
    for i in range(values.shape[0]):
        low, high = np.float64(np.inf), np.float64(-np.inf)
        for j in range(values.shape[1]):
            value = np.float64(values[i, j])
            if not np.isfinite(value):
                return i
            low, high = min(low, value), max(high, value)
        if values.shape[1] == 0:
            continue
        if high - low > FLOAT32_MAX:
            return i
        scale = np.float32((high - low) / levels)
        offset = np.float32(low)
        while not np.isfinite(offset + scale * np.float32(levels)):
            # Rounding could exceed the greatest float32.
            scale *= np.float32(1 - 1e-7)
        headers[i, 0], headers[i, 1] = scale, offset
        for j in range(values.shape[1]):
            code = 0
            if scale > 0:
                step = (np.float64(values[i, j]) - low) / np.float64(scale) + 0.5
                code = min(np.int64(step), levels)
            if levels == 255:
                encoded[i, HEADER_BYTES + j] = code
            else:
                encoded[i, HEADER_BYTES + (j >> 1)] |= np.uint8(code << (4 * (j & 1)))
    return -1


@njit(nogil=True, cache=True)
def decode_bytes(encoded, headers, rows, positions, out):
    """Decode some rows with a byte per value to their positions."""
    width = out.shape[1]
    for i in range(len(positions)):
        row = rows[i]
        scale, offset = headers[row, 0], headers[row, 1]
        codes, target = encoded[row, HEADER_BYTES:], out[positions[i]]
        for j in range(width):
            target[j] = offset + scale * np.float32(codes[j])


@njit(nogil=True, cache=True)
def decode_nibbles(encoded, headers, rows, positions, out):
    """Decode some rows with half a byte per value to their positions."""
    width = out.shape[1]
    for i in range(len(positions)):
        row = rows[i]
        scale, offset = headers[row, 0], headers[row, 1]
        codes, target = encoded[row, HEADER_BYTES:], out[positions[i]]
        for j in range(width >> 1):
            target[2 * j] = offset + scale * np.float32(codes[j] & 15)
            target[2 * j + 1] = offset + scale * np.float32(codes[j] >> 4)
        if width & 1:
            target[width - 1] = offset + scale * np.float32(codes[width >> 1] & 15)
