//! Objects read by taking their known members, so that what's left over is known too.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{LeftOut, Refused};

/// The most members of an object.
const MAX_MEMBERS: usize = 256;
/// The most elements of a list (as many messages as Anthropic takes): bounds what a body of `[1,1,1,…]` costs.
const MAX_ELEMENTS: usize = 100_000;

/// The members of an object that weren't taken yet, and where it stands.
#[derive(Debug)]
pub(super) struct Members<'a> {
    at: String,
    of: Vec<(String, &'a RawValue)>,
}

/// A whole document.
pub(super) fn whole(body: &[u8]) -> Result<&RawValue, Refused> {
    serde_json::from_slice(body).map_err(|_| malformed("/", "valid JSON"))
}

pub(super) fn malformed(at: impl Into<String>, why: &'static str) -> Refused {
    Refused::Malformed { at: at.into(), why }
}

impl<'a> Members<'a> {
    pub(super) fn read(at: impl Into<String>, raw: &'a RawValue) -> Result<Self, Refused> {
        let at = at.into();
        let Ok(Object(of)) = serde_json::from_str(raw.get()) else {
            let at = if at.is_empty() { "/".to_owned() } else { at };
            return Err(malformed(at, "an object of at most 256 members, none twice"));
        };
        Ok(Self { at, of })
    }

    /// JSON pointer of a member.
    pub(super) fn at(&self, name: &str) -> String {
        format!("{}/{}", self.at, name.replace('~', "~0").replace('/', "~1"))
    }

    /// JSON pointer of the object.
    pub(super) fn here(&self) -> &str {
        if self.at.is_empty() { "/" } else { &self.at }
    }

    /// Takes a member; `null` is as good as none.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let at = self.of.iter().position(|(known, _)| known == name)?;
        let (_, raw) = self.of.swap_remove(at);
        (raw.get() != "null").then_some(raw)
    }

    fn as_a<T: Deserialize<'a>>(&mut self, name: &str, why: &'static str) -> Result<Option<T>, Refused> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| malformed(self.at(name), why))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Refused> {
        self.as_a(name, "a string")
    }

    pub(super) fn need_text(&mut self, name: &str) -> Result<String, Refused> {
        self.text(name)?.ok_or_else(|| malformed(self.at(name), "a string"))
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, Refused> {
        self.as_a(name, "a whole number, not negative")
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, Refused> {
        self.as_a(name, "true or false")
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Self>, Refused> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        Members::read(self.at(name), raw).map(Some)
    }

    pub(super) fn need_object(&mut self, name: &str) -> Result<Self, Refused> {
        self.object(name)?.ok_or_else(|| malformed(self.at(name), "an object"))
    }

    /// The elements of a list and their pointers.
    pub(super) fn list(&mut self, name: &str) -> Result<Option<Vec<(String, &'a RawValue)>>, Refused> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        elements(&self.at(name), raw).map(Some)
    }

    /// A number kept as it's written, with its value.
    pub(super) fn decimal(&mut self, name: &str) -> Result<Option<(&'a RawValue, f64)>, Refused> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        let value = serde_json::from_str(raw.get()).map_err(|_| malformed(self.at(name), "a number"))?;
        Ok(Some((raw, value)))
    }

    /// Takes a member that's only a hint and names it.
    pub(super) fn hint(&mut self, name: &str, left_out: &mut LeftOut) {
        if self.take(name).is_some() {
            left_out.name(self.at(name));
        }
    }

    /// Takes a member that says what holds anyway: refused if it says anything but one of `same` (compact JSON).
    pub(super) fn only(
        &mut self,
        name: &str,
        same: &[&str],
        to: &'static str,
        why: &'static str,
    ) -> Result<(), Refused> {
        match self.take(name) {
            Some(raw) if !same.contains(&raw.get()) => {
                Err(Refused::Untranslatable { at: self.at(name), to, why })
            }
            _ => Ok(()),
        }
    }

    /// Refuses what's left over.
    pub(super) fn none_left(mut self, to: &'static str) -> Result<(), Refused> {
        self.of.retain(|(_, raw)| raw.get() != "null");
        match self.of.first() {
            Some((name, _)) => {
                Err(Refused::Untranslatable { at: self.at(name), to, why: "nothing there means the same" })
            }
            None => Ok(()),
        }
    }

    /// Names what's left over, unless it's empty.
    pub(super) fn name_left(self, left_out: &mut LeftOut) {
        for (name, raw) in &self.of {
            if !matches!(raw.get(), "null" | "[]" | "{}" | "\"\"") {
                left_out.name(self.at(name));
            }
        }
    }
}

/// The elements of a list that stands at `at`.
pub(super) fn elements<'a>(at: &str, raw: &'a RawValue) -> Result<Vec<(String, &'a RawValue)>, Refused> {
    let List(of) =
        serde_json::from_str(raw.get()).map_err(|_| malformed(at, "a list of at most 100000 elements"))?;
    Ok(of.into_iter().enumerate().map(|(n, raw)| (format!("{at}/{n}"), raw)).collect())
}

struct Object<'a>(Vec<(String, &'a RawValue)>);
struct List<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Object<'de>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut of: Vec<(String, &'de RawValue)> = Vec::new();
                while let Some((name, raw)) = map.next_entry::<String, &'de RawValue>()? {
                    if of.len() == MAX_MEMBERS || of.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom("a member twice, or too many"));
                    }
                    of.push((name, raw));
                }
                Ok(Object(of))
            }
        }
        from.deserialize_map(Read)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for List<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = List<'de>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<'de>, A::Error> {
                let mut of = Vec::new();
                while let Some(raw) = list.next_element::<&'de RawValue>()? {
                    if of.len() == MAX_ELEMENTS {
                        return Err(A::Error::custom("too many elements"));
                    }
                    of.push(raw);
                }
                Ok(List(of))
            }
        }
        from.deserialize_seq(Read)
    }
}
