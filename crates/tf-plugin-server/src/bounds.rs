//! Size limits for host values, checked before decoding.
//!
//! Decoders recurse once per level, so a few kilobytes with a thousand levels overflow the stack.
//! One byte can also decode to a value of thirty bytes. These checks read only the markers, without
//! recursion.

use rmp::Marker;

/// Maximum nesting depth. Schemas nest to about a dozen levels; `serde_json` stops at 128.
const DEEPEST: usize = 100;

/// Maximum number of values in a document.
const MOST: usize = 1_000_000;

/// Why a value is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooLarge {
    /// It nests too deeply.
    #[error("it nests more than {DEEPEST} levels deep")]
    Deep,
    /// It contains too many values.
    #[error("it consists of more than {MOST} values")]
    Many,
}

/// Checks a MessagePack value. Malformed values pass, because the decoder describes the error
/// better.
pub(super) fn msgpack(bytes: &[u8]) -> Result<(), TooLarge> {
    // Number of outstanding values per open level.
    let mut open: Vec<usize> = Vec::new();
    let (mut rest, mut values) = (bytes, 0);
    while let Some((mark, after)) = rest.split_first() {
        rest = after;
        values += 1;
        if values > MOST {
            return Err(TooLarge::Many);
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let (skipped, parts) = match Marker::from_u8(*mark) {
            Marker::FixArray(count) => (0, usize::from(count)),
            Marker::FixMap(count) => (0, 2 * usize::from(count)),
            Marker::Array16 => (2, number(rest, 2)),
            Marker::Array32 => (4, number(rest, 4)),
            Marker::Map16 => (2, number(rest, 2).saturating_mul(2)),
            Marker::Map32 => (4, number(rest, 4).saturating_mul(2)),
            Marker::FixStr(length) => (usize::from(length), 0),
            Marker::Str8 | Marker::Bin8 => (number(rest, 1).saturating_add(1), 0),
            Marker::Str16 | Marker::Bin16 => (number(rest, 2).saturating_add(2), 0),
            Marker::Str32 | Marker::Bin32 => (number(rest, 4).saturating_add(4), 0),
            // An extension has an extra byte for its type.
            Marker::Ext8 => (number(rest, 1).saturating_add(2), 0),
            Marker::Ext16 => (number(rest, 2).saturating_add(3), 0),
            Marker::Ext32 => (number(rest, 4).saturating_add(5), 0),
            Marker::FixExt2 => (3, 0),
            Marker::FixExt4 => (5, 0),
            Marker::FixExt8 => (9, 0),
            Marker::FixExt16 => (17, 0),
            Marker::U8 | Marker::I8 => (1, 0),
            Marker::U16 | Marker::I16 | Marker::FixExt1 => (2, 0),
            Marker::U32 | Marker::I32 | Marker::F32 => (4, 0),
            Marker::U64 | Marker::I64 | Marker::F64 => (8, 0),
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False | Marker::Reserved => {
                (0, 0)
            }
        };
        rest = rest.get(skipped..).unwrap_or_default();
        if parts > 0 {
            open.push(parts);
        }
        if open.len() > DEEPEST {
            return Err(TooLarge::Deep);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Checks a JSON value; the JSON decoder limits depth itself.
pub(super) fn json(bytes: &[u8]) -> Result<(), TooLarge> {
    let parts = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{' | b':'));
    if parts.take(MOST + 1).count() > MOST { Err(TooLarge::Many) } else { Ok(()) }
}

/// Returns the big-endian number in the first bytes; missing bytes are ignored.
fn number(bytes: &[u8], length: usize) -> usize {
    bytes.iter().take(length).fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Vec<u8> {
        let mut bytes = vec![0x91; levels];
        bytes.push(0xc0);
        bytes
    }

    #[test]
    fn depth_is_bounded_without_a_call_for_each_level() {
        assert_eq!(msgpack(&nested(DEEPEST)), Ok(()));
        assert_eq!(msgpack(&nested(DEEPEST + 1)), Err(TooLarge::Deep));
        assert_eq!(msgpack(&nested(10_000_000)), Err(TooLarge::Deep));
    }

    #[test]
    fn the_number_of_values_is_bounded_and_not_what_a_length_claims() {
        let many = |count: u32| {
            let mut bytes = vec![0xdd];
            bytes.extend_from_slice(&count.to_be_bytes());
            bytes.resize(5 + usize::try_from(count).unwrap(), 0xc0);
            bytes
        };
        assert_eq!(msgpack(&many(999_999)), Ok(()));
        assert_eq!(msgpack(&many(1_000_000)), Err(TooLarge::Many));
        assert_eq!(msgpack(&[0xdd, 0xff, 0xff, 0xff, 0xff]), Ok(()), "its decoder reports the missing rest");
        let mut commas = b"[null".to_vec();
        commas.extend(b",null".repeat(MOST));
        assert_eq!(json(&commas), Err(TooLarge::Many));
        assert_eq!(json(b"[1,2,{\"a\":[]}]"), Ok(()));
    }

    #[test]
    fn every_kind_of_value_is_passed_over_whole() {
        let value = (
            "a".repeat(40),
            "b".repeat(300),
            "c".repeat(70_000),
            (1u8, 300u16, 70_000u32, u64::MAX, -1i8, -300i16, -70_000i32, i64::MIN),
            (1.5f32, 2.5f64, true, ()),
            std::collections::BTreeMap::from([("key", vec![Some(1), None])]),
        );
        let mut bytes = rmp_serde::to_vec_named(&value).unwrap();
        assert_eq!(msgpack(&bytes), Ok(()));
        // Bytes after the value do not count: a wrongly skipped length would reach them.
        bytes.extend(nested(DEEPEST + 1));
        assert_eq!(msgpack(&bytes), Ok(()));
        let mut two = vec![0x92];
        two.extend(&bytes[..bytes.len() - DEEPEST - 2]);
        two.extend(nested(DEEPEST + 1));
        assert_eq!(msgpack(&two), Err(TooLarge::Deep), "and had too much been, this would not");
    }
}
