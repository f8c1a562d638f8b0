//! Converts the host's MessagePack numbers and back.
//!
//! The host's numbers are decimals with 512 bits. It sends exact integers and floats as such, and
//! others as strings: 0.1 arrives as `"0.1"`, which no Rust number deserialises from. In the other
//! direction, the float nearest to 0.1 differs from the host's 0.1, so the host rejects a plan with
//! it as inconsistent. Therefore strings become numbers on the way in if the schema requires a
//! number, and floats become their shortest decimal on the way out.
use rmp::{Marker, decode, encode};

use tf_provider::{AttributePath, AttributePathStep};

use super::shape::Shape;

/// The document is truncated, nested too deeply, or not MessagePack.
#[derive(Debug, thiserror::Error)]
#[error("malformed MessagePack")]
pub(super) struct Malformed;

/// Deeper than any schema that a host accepts.
const DEEPEST: usize = 128;

/// Converts number strings to numbers; `None` if `shape` contains no numbers.
pub(super) fn inbound(document: &[u8], shape: &Shape) -> Option<Result<Vec<u8>, Malformed>> {
    shape.has_number().then(|| rewrite(document, Some(shape), false))
}

/// Converts floats to whole numbers or decimal strings.
pub(super) fn outbound(document: &[u8]) -> Result<Vec<u8>, Malformed> {
    rewrite(document, None, true)
}

/// Finds a number that is not a 64-bit integer, in a document after inbound conversion.
pub(super) fn not_whole(document: &[u8], shape: &Shape) -> Option<AttributePath> {
    let mut walk = Walk { rest: document, written: Vec::new(), out: false, at: Vec::new(), not_whole: None };
    walk.value(Some(shape), 0).ok()?;
    walk.not_whole.map(|steps| AttributePath { steps })
}

fn rewrite(document: &[u8], shape: Option<&Shape>, out: bool) -> Result<Vec<u8>, Malformed> {
    let mut walk =
        Walk { rest: document, written: Vec::with_capacity(document.len()), out, at: Vec::new(), not_whole: None };
    walk.value(shape, 0)?;
    Ok(walk.written)
}

struct Walk<'a> {
    rest: &'a [u8],
    written: Vec<u8>,
    out: bool,
    /// The current path.
    at: Vec<AttributePathStep>,
    /// Path of the first number that no 64-bit integer can represent.
    not_whole: Option<Vec<AttributePathStep>>,
}

impl<'a> Walk<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn copy(&mut self, length: usize) -> Result<(), Malformed> {
        let taken = self.take(length)?;
        self.written.extend_from_slice(taken);
        Ok(())
    }

    /// Returns the big-endian number of `width` bytes after the marker.
    fn length(&self, width: usize) -> Result<usize, Malformed> {
        let bytes = self.rest.get(1..=width).ok_or(Malformed)?;
        Ok(bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn value(&mut self, shape: Option<&Shape>, depth: usize) -> Result<(), Malformed> {
        if depth > DEEPEST {
            return Err(Malformed);
        }
        let marker = Marker::from_u8(*self.rest.first().ok_or(Malformed)?);
        if shape == Some(&Shape::Number) && self.not_whole.is_none() && self.is_not_whole(marker) {
            self.not_whole = Some(self.at.clone());
        }
        match marker {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => self.copy(1),
            Marker::U8 | Marker::I8 => self.copy(2),
            Marker::U16 | Marker::I16 | Marker::FixExt1 => self.copy(3),
            Marker::U32 | Marker::I32 => self.copy(5),
            Marker::U64 | Marker::I64 => self.copy(9),
            Marker::F32 | Marker::F64 => self.float(marker),
            Marker::FixStr(length) => self.string(1, usize::from(length), shape),
            Marker::Str8 => self.string(2, self.length(1)?, shape),
            Marker::Str16 => self.string(3, self.length(2)?, shape),
            Marker::Str32 => self.string(5, self.length(4)?, shape),
            Marker::Bin8 => self.copy(2 + self.length(1)?),
            Marker::Bin16 => self.copy(3 + self.length(2)?),
            Marker::Bin32 => self.copy(5 + self.length(4)?),
            Marker::FixExt2 => self.copy(4),
            Marker::FixExt4 => self.copy(6),
            Marker::FixExt8 => self.copy(10),
            Marker::FixExt16 => self.copy(18),
            Marker::Ext8 => self.copy(3 + self.length(1)?),
            Marker::Ext16 => self.copy(4 + self.length(2)?),
            Marker::Ext32 => self.copy(6 + self.length(4)?),
            Marker::FixArray(count) => self.array(1, usize::from(count), shape, depth),
            Marker::Array16 => self.array(3, self.length(2)?, shape, depth),
            Marker::Array32 => self.array(5, self.length(4)?, shape, depth),
            Marker::FixMap(count) => self.map(1, usize::from(count), shape, depth),
            Marker::Map16 => self.map(3, self.length(2)?, shape, depth),
            Marker::Map32 => self.map(5, self.length(4)?, shape, depth),
            Marker::Reserved => Err(Malformed),
        }
    }

    fn is_not_whole(&self, marker: Marker) -> bool {
        match marker {
            Marker::F32 | Marker::F64 => true,
            // A decimal beyond a float's range.
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                decode::read_str_from_slice(self.rest).is_ok_and(|(text, _)| text.parse::<f64>().is_ok())
            }
            Marker::U64 => self.length(8).is_ok_and(|number| i64::try_from(number).is_err()),
            _ => false,
        }
    }

    fn array(&mut self, head: usize, count: usize, shape: Option<&Shape>, depth: usize) -> Result<(), Malformed> {
        self.copy(head)?;
        for index in 0..count {
            self.at.push(AttributePathStep::Index(i64::try_from(index).unwrap_or(i64::MAX)));
            self.value(shape.and_then(|of| of.at(index)), depth + 1)?;
            self.at.pop();
        }
        Ok(())
    }

    fn map(&mut self, head: usize, count: usize, shape: Option<&Shape>, depth: usize) -> Result<(), Malformed> {
        self.copy(head)?;
        for _ in 0..count {
            let before = self.rest;
            self.value(None, depth + 1)?;
            let key = decode::read_str_from_slice(before).ok().map(|(key, _)| key);
            let under = key.and_then(|key| shape.and_then(|of| of.under(key)));
            let name = std::borrow::Cow::Owned(key.unwrap_or_default().to_owned());
            self.at.push(match shape {
                Some(Shape::Map(_)) => AttributePathStep::Key(name),
                _ => AttributePathStep::Attribute(name),
            });
            self.value(under, depth + 1)?;
            self.at.pop();
        }
        Ok(())
    }

    fn string(&mut self, head: usize, length: usize, shape: Option<&Shape>) -> Result<(), Malformed> {
        if shape != Some(&Shape::Number) {
            return self.copy(head + length);
        }
        let whole = self.take(head + length)?;
        let text = std::str::from_utf8(&whole[head..]).map_err(|_| Malformed)?;
        if let Ok(number) = text.parse::<i64>() {
            let _ = encode::write_sint(&mut self.written, number);
        } else if let Ok(number) = text.parse::<u64>() {
            let _ = encode::write_uint(&mut self.written, number);
        } else if let Some(number) = text.parse::<f64>().ok().filter(|number| number.is_finite()) {
            let _ = encode::write_f64(&mut self.written, number);
        } else {
            // Beyond a float's range: keep the string for types that accept it.
            self.written.extend_from_slice(whole);
        }
        Ok(())
    }

    fn float(&mut self, marker: Marker) -> Result<(), Malformed> {
        let whole = self.take(if marker == Marker::F32 { 5 } else { 9 })?;
        let decimal = match *whole {
            [_, ref single @ ..] if marker == Marker::F32 => {
                single.try_into().ok().map(f32::from_be_bytes).and_then(shortest)
            }
            [_, ref double @ ..] => double.try_into().ok().map(f64::from_be_bytes).and_then(shortest),
            [] => None,
        };
        match decimal.filter(|_| self.out) {
            Some(decimal) => self.number(&decimal),
            None => self.written.extend_from_slice(whole),
        }
        Ok(())
    }

    /// Writes a whole number in the host's form, and other numbers as decimals.
    fn number(&mut self, decimal: &str) {
        // Writing to a vector does not fail.
        let _ = match decimal.parse() {
            Ok(whole) => encode::write_sint(&mut self.written, whole).map(drop),
            Err(_) => encode::write_str(&mut self.written, decimal),
        };
    }
}

/// Returns the shortest decimal, without an exponent, that reads back as the same float; `None` for
/// infinities and NaN.
fn shortest<F: Copy + Into<f64> + std::fmt::Display>(float: F) -> Option<String> {
    let wide: f64 = float.into();
    wide.is_finite().then(|| float.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde::Serialize;

    use super::*;

    fn packed(value: &impl Serialize) -> Vec<u8> {
        rmp_serde::to_vec_named(value).unwrap()
    }

    #[test]
    fn the_place_of_a_fraction_is_found() {
        let number = || Box::new(Shape::Number);
        let shape = Shape::Tuple(vec![Shape::Opaque, Shape::Elements(number()), Shape::Map(number())]);
        let place = |document: &[u8]| not_whole(document, &shape).map(|path| path.to_string());
        let map = |value: f64| std::collections::BTreeMap::from([("k", value)]);
        assert_eq!(place(&packed(&(0.5, [1, 2]))), None);
        assert_eq!(place(&packed(&(0.5, [1.0, 2.5]))).as_deref(), Some("[1][0]"));
        assert_eq!(place(&packed(&(0, [1], map(0.5)))).as_deref(), Some("[2][\"k\"]"));
        assert_eq!(place(&packed(&(0, [u64::MAX]))).as_deref(), Some("[1][0]"));
    }

    #[test]
    fn strings_become_numbers_only_where_the_schema_says_number() {
        let shape = Shape::Tuple(vec![Shape::Number, Shape::Opaque, Shape::Elements(Box::new(Shape::Number))]);
        let document = packed(&("0.1", "0.1", ["12", "18446744073709551615"]));
        let read: (f64, String, Vec<u64>) =
            rmp_serde::from_slice(&inbound(&document, &shape).unwrap().unwrap()).unwrap();
        assert_eq!(read, (0.1, "0.1".into(), vec![12, u64::MAX]));

        let map = packed(&std::collections::BTreeMap::from([("k", "-3.5")]));
        let of = Shape::Map(Box::new(Shape::Number));
        let read: std::collections::BTreeMap<String, f64> =
            rmp_serde::from_slice(&inbound(&map, &of).unwrap().unwrap()).unwrap();
        assert_eq!(read["k"].to_bits(), (-3.5_f64).to_bits());
    }

    #[test]
    fn a_number_beyond_a_float_stays_a_string() {
        let document = packed(&"1e999");
        assert_eq!(inbound(&document, &Shape::Number).unwrap().unwrap(), document);
    }

    #[test]
    fn floats_leave_as_the_decimal_a_person_wrote() {
        let sent = outbound(&packed(&(0.1_f64, 0.1_f32, 2.0_f64, 1e20_f64, 7))).unwrap();
        let read: (String, String, i64, String, i64) = rmp_serde::from_slice(&sent).unwrap();
        assert_eq!(read, ("0.1".into(), "0.1".into(), 2, "100000000000000000000".into(), 7));
    }

    #[test]
    fn a_document_that_breaks_off_is_malformed() {
        let whole = packed(&("text", [1.5, 2.5]));
        for end in 0..whole.len() {
            assert!(outbound(&whole[..end]).is_err(), "cut at {end}");
        }
        let deep = [vec![0x91; 4096], vec![0xc0]].concat();
        assert!(outbound(&deep).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = outbound(&bytes);
            let _ = inbound(&bytes, &Shape::Map(Box::new(Shape::Number)));
        }

        #[test]
        fn every_float_survives_the_way_out_and_in(number in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
            let sent = outbound(&packed(&number)).unwrap();
            let back = inbound(&sent, &Shape::Number).unwrap().unwrap();
            let read: f64 = rmp_serde::from_slice(&back).unwrap();
            // Adding zero unifies the two zeros, which are equal for the host.
            prop_assert_eq!((read + 0.0).to_bits(), (number + 0.0).to_bits());
        }
    }
}
