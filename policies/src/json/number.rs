//! A JSON number by its spelling: what it is worth is worked out in decimal digits, never in a double.

/// Digits that are written out before and behind the point; beyond, an exponent is.
const WRITTEN_OUT: i64 = 40;

/// A number as it was spelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number(Box<str>);

/// `digits` × 10^`exponent`, without needless zeros at either end; no digits are zero.
struct Value {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Number {
    /// The caller knows that `text` is a JSON number.
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As it was spelled.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The integer, if it is spelled as one and fits.
    pub(crate) fn as_long(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The one spelling of its value: `1e2`, `100.0` and `100` are all `100`.
    pub(crate) fn canonical(&self) -> String {
        self.value().text()
    }

    /// The same for the double next to it, which is what many readers take it for.
    pub(crate) fn canonical_double(&self) -> Option<String> {
        let double: f64 = self.0.parse().ok()?;
        double.is_finite().then(|| Self::new(&format!("{double:e}")).canonical())
    }

    /// As Cedar writes a decimal, if it has no more than four places and fits.
    pub(crate) fn as_decimal(&self) -> Option<String> {
        let Value { negative, digits, exponent } = self.value();
        if digits.is_empty() {
            return Some("0.0".to_owned());
        }
        let zeros = usize::try_from(exponent.checked_add(4)?).ok()?;
        if digits.len().saturating_add(zeros) > 19 {
            return None;
        }
        let units: i128 = format!("{digits}{}", "0".repeat(zeros)).parse().ok()?;
        let units = if negative { -units } else { units };
        i64::try_from(units).ok()?;
        let (sign, size) = (if negative { "-" } else { "" }, units.unsigned_abs());
        Some(format!("{sign}{}.{:04}", size / 10_000, size % 10_000))
    }

    fn value(&self) -> Value {
        let (negative, text) = match self.0.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, &*self.0),
        };
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        // So many digits that their number doesn't fit are as good as endless.
        let endless = if power.starts_with('-') { i64::MIN } else { i64::MAX };
        let power: i64 = power.strip_prefix('+').unwrap_or(power).parse().unwrap_or(endless);
        let all = format!("{whole}{fraction}");
        let digits = all.trim_end_matches('0');
        let dropped = i64::try_from(all.len().saturating_sub(digits.len())).unwrap_or(i64::MAX);
        let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        Value {
            negative,
            digits: digits.trim_start_matches('0').to_owned(),
            exponent: power.saturating_sub(places).saturating_add(dropped),
        }
    }
}

impl Value {
    fn text(&self) -> String {
        let Self { negative, digits, exponent } = self;
        if digits.is_empty() {
            return "0".to_owned();
        }
        let sign = if *negative { "-" } else { "" };
        let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
        let point = length.saturating_add(*exponent);
        if !(-WRITTEN_OUT..=WRITTEN_OUT).contains(&point) || length > 2 * WRITTEN_OUT {
            let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
            let dot = if rest.is_empty() { "" } else { "." };
            return format!("{sign}{first}{dot}{rest}e{}", point.saturating_sub(1));
        }
        let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or_default());
        match usize::try_from(point) {
            Ok(0) | Err(_) => format!("{sign}0.{}{digits}", zeros(point.saturating_neg())),
            Ok(point) => match digits.split_at_checked(point) {
                Some((whole, fraction)) if !fraction.is_empty() => format!("{sign}{whole}.{fraction}"),
                _ => format!("{sign}{digits}{}", zeros(*exponent)),
            },
        }
    }
}

/// The spellings of all numbers of a JSON text, in order. Of a text that isn't JSON anything may come.
pub(super) fn literals(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (start, byte) {
            (None, b'-' | b'0'..=b'9') => start = Some(at),
            (Some(_), b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') => {}
            (Some(from), _) => {
                found.extend(text.get(from..at));
                start = None;
            }
            (None, _) => {}
        }
        if byte == b'"' {
            while let Some((_, byte)) = bytes.next() {
                match byte {
                    b'\\' => drop(bytes.next()),
                    b'"' => break,
                    _ => {}
                }
            }
        }
    }
    found.extend(start.and_then(|from| text.get(from..)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_value_has_one_canonical_text() {
        for (canonical, spellings) in [
            ("100", &["100", "1e2", "100.0", "1E+2", "0.1e3", "10000e-2"][..]),
            ("0", &["0", "-0", "0.0", "-0e9", "0e99999999999999999999"]),
            ("-82.5", &["-82.5", "-82.50", "-8.25e1"]),
            ("0.001", &["0.001", "1e-3", "0.1e-2"]),
            ("9007199254740993", &["9007199254740993", "9007199254740993.0"]),
            ("123456789012345678901234567890", &["123456789012345678901234567890"]),
            ("1.5e300", &["1.5e300", "15e299"]),
            ("1e-300", &["1e-300", "0.1e-299"]),
        ] {
            for spelling in spellings {
                assert_eq!(Number::new(spelling).canonical(), canonical, "{spelling}");
            }
        }
        assert_eq!(Number::new("1e-99999999999999999999").canonical(), format!("1e{}", i64::MIN));
        assert_eq!(Number::new("9007199254740993").canonical_double().unwrap(), "9007199254740992");
        assert_eq!(Number::new("100.00000000000000000001").canonical_double().unwrap(), "100");
        assert_eq!(Number::new("0.1").canonical_double().unwrap(), "0.1");
    }

    #[test]
    fn a_decimal_is_exact_or_nothing() {
        for (text, decimal) in [
            ("1", Some("1.0000")),
            ("-0.5", Some("-0.5000")),
            ("-0.00005", None),
            ("1.00000", Some("1.0000")),
            ("1.23456", None),
            ("0", Some("0.0")),
            ("1e2", Some("100.0000")),
            ("922337203685477.5807", Some("922337203685477.5807")),
            ("922337203685477.5808", None),
            ("-922337203685477.5808", Some("-922337203685477.5808")),
            ("1e400", None),
            ("1e-400", None),
        ] {
            assert_eq!(Number::new(text).as_decimal().as_deref(), decimal, "{text}");
        }
        for (text, long) in [
            ("82", Some(82)),
            ("82.0", None),
            ("1e2", None),
            ("-0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
        ] {
            assert_eq!(Number::new(text).as_long(), long, "{text}");
        }
    }
}
