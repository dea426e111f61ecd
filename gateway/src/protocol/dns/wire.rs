//! DNS messages on the wire (RFC 1035 section 4, RFC 6891): reading a query, writing the short answers.
//!
//! Questions are read by hand because this is the hot path; answers from upstream go through hickory.
//!
//! Architecture invariant: nothing here allocates for a well-formed query, and nothing here panics.

use std::{fmt::Write, net::Ipv4Addr};

/// Longest name on the wire, bytes.
const MAX_NAME: usize = 255;
/// Largest answer over UDP, bytes: what passes every path unfragmented (DNS Flag Day 2020).
pub(super) const MAX_UDP: u16 = 1232;
/// Largest answer over UDP for a client without EDNS, bytes.
const PLAIN_UDP: u16 = 512;
/// How long an answer may be kept, seconds.
const TTL: u32 = 30;

/// Record types that have a rule of their own.
pub(super) mod types {
    pub(in super::super) const A: u16 = 1;
    pub(in super::super) const PTR: u16 = 12;
    pub(in super::super) const AAAA: u16 = 28;
    pub(super) const OPT: u16 = 41;

    /// Types that carry no data of a name or ask for everything at once: NULL, OPT, TKEY, TSIG, zone transfers,
    /// MAILA and MAILB, ANY.
    pub(in super::super) fn is_meta(number: u16) -> bool {
        matches!(number, 0 | 10 | OPT | 249..=255)
    }
}

/// Response codes (RFC 6895).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rcode {
    NoError = 0,
    FormErr = 1,
    ServFail = 2,
    NxDomain = 3,
    NotImp = 4,
    Refused = 5,
    BadVers = 16,
}

/// A query that can be answered.
#[derive(Debug)]
pub(super) struct Query<'a> {
    head: Head,
    /// The question section as it came: echoed with the client's spelling.
    question: &'a [u8],
    /// Record type.
    pub(super) qtype: u16,
    /// Class; 1 is IN.
    pub(super) class: u16,
    /// Whether the name has only letters, digits, `-` and `_`; otherwise its text has escapes.
    pub(super) plain: bool,
}

/// What an answer needs of a query that might not be readable further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    id: u16,
    opcode: u8,
    recursion_desired: bool,
    /// UDP size of the client if it speaks EDNS.
    edns: Option<u16>,
}

/// Why a packet isn't a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Not worth an answer: no header, or itself an answer.
    Silent(&'static str),
    /// To be answered without its question.
    Answer(Head, Rcode, &'static str),
}

/// Reads front to back.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }
}

impl<'a> Query<'a> {
    /// Reads a packet. The name is written to `name` in presentation form: lower case, without the last dot,
    /// anything unusual escaped as `\DDD` (RFC 4343).
    ///
    /// # Errors
    /// [`Unreadable`]: how to answer, and why in words.
    pub(super) fn read(packet: &'a [u8], name: &mut String) -> Result<Self, Unreadable> {
        name.clear();
        let mut reader = Reader(packet);
        let (head, counts) = Head::read(&mut reader)?;
        let formerr = |why| Unreadable::Answer(head, Rcode::FormErr, why);
        if head.opcode != 0 {
            return Err(Unreadable::Answer(head, Rcode::NotImp, "not a standard query"));
        }
        let [questions, answers, authorities, additionals] = counts;
        if questions != 1 {
            return Err(formerr("a query has exactly one question"));
        }
        if answers != 0 || authorities != 0 || additionals > 2 {
            return Err(formerr("a query carries records that don't belong in one"));
        }
        let before = reader.0;
        let plain = read_name(&mut reader, name).map_err(formerr)?;
        let cut = || formerr("the question is cut short");
        let qtype = reader.u16().ok_or_else(cut)?;
        let class = reader.u16().ok_or_else(cut)?;
        let question = before.get(..before.len().saturating_sub(reader.0.len())).unwrap_or_default();
        let mut query = Self { head, question, qtype, class, plain };
        query.read_additionals(&mut reader, additionals)?;
        Ok(query)
    }

    fn read_additionals(&mut self, reader: &mut Reader<'_>, count: u16) -> Result<(), Unreadable> {
        for _ in 0..count {
            let record = additional(reader);
            let Some((rtype, size, ttl)) = record else {
                return Err(self.formerr("a record behind the question can't be read"));
            };
            if rtype != types::OPT {
                continue;
            }
            if self.head.edns.is_some() {
                return Err(self.formerr("two EDNS records"));
            }
            self.head.edns = Some(size);
            if (ttl >> 16) & 0xff != 0 {
                return Err(Unreadable::Answer(self.head, Rcode::BadVers, "an unknown version of EDNS"));
            }
        }
        if reader.0.is_empty() { Ok(()) } else { Err(self.formerr("bytes behind the end of the query")) }
    }

    fn formerr(&self, why: &'static str) -> Unreadable {
        Unreadable::Answer(self.head, Rcode::FormErr, why)
    }

    /// Largest answer that the client takes over UDP, bytes.
    pub(super) fn udp_size(&self) -> usize {
        let size = self.head.edns.map_or(PLAIN_UDP, |size| size.clamp(PLAIN_UDP, MAX_UDP));
        usize::from(size)
    }

    /// Writes an answer without records.
    pub(super) fn empty(&self, code: Rcode, out: &mut Vec<u8>) {
        self.head.write(code, Some(self.question), 0, false, out);
        self.head.write_edns(code, out);
    }

    /// Writes an answer that says: ask again over TCP.
    pub(super) fn truncated(&self, out: &mut Vec<u8>) {
        self.head.write(Rcode::NoError, Some(self.question), 0, true, out);
        self.head.write_edns(Rcode::NoError, out);
    }

    /// Writes the address of the name asked for.
    pub(super) fn address(&self, addr: Ipv4Addr, out: &mut Vec<u8>) {
        self.record(types::A, &addr.octets(), out);
    }

    /// Writes the name behind the address asked for.
    pub(super) fn pointer(&self, name: &str, out: &mut Vec<u8>) {
        let mut data = Vec::with_capacity(name.len().saturating_add(2));
        for label in name.split('.') {
            // A canonical name's labels have at most 63 bytes.
            data.push(u8::try_from(label.len()).unwrap_or_default());
            data.extend(label.as_bytes());
        }
        data.push(0);
        self.record(types::PTR, &data, out);
    }

    fn record(&self, rtype: u16, data: &[u8], out: &mut Vec<u8>) {
        self.head.write(Rcode::NoError, Some(self.question), 1, false, out);
        // The question's name stands right behind the header.
        out.extend([0xc0, 12]);
        out.extend(rtype.to_be_bytes());
        out.extend(1_u16.to_be_bytes());
        out.extend(TTL.to_be_bytes());
        out.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
        out.extend(data);
        self.head.write_edns(Rcode::NoError, out);
    }

    /// Writes `count` records that are encoded already, names uncompressed.
    pub(super) fn records(&self, count: u16, encoded: &[u8], out: &mut Vec<u8>) {
        self.head.write(Rcode::NoError, Some(self.question), count, false, out);
        out.extend(encoded);
        self.head.write_edns(Rcode::NoError, out);
    }
}

impl Head {
    fn read(reader: &mut Reader<'_>) -> Result<(Self, [u16; 4]), Unreadable> {
        let cut = Unreadable::Silent("shorter than a DNS header");
        let id = reader.u16().ok_or(cut)?;
        let flags = reader.u16().ok_or(cut)?;
        let mut counts = [0; 4];
        for count in &mut counts {
            *count = reader.u16().ok_or(cut)?;
        }
        if flags & 0x8000 != 0 {
            // An answer to an answer could go on for ever.
            return Err(Unreadable::Silent("an answer and not a query"));
        }
        let opcode = u8::try_from((flags >> 11) & 0xf).unwrap_or_default();
        let head = Self { id, opcode, recursion_desired: flags & 0x0100 != 0, edns: None };
        Ok((head, counts))
    }

    /// Writes an answer without a question, for a query that can't be read.
    pub(super) fn bare(self, code: Rcode, out: &mut Vec<u8>) {
        self.write(code, None, 0, false, out);
        self.write_edns(code, out);
    }

    fn write(self, code: Rcode, question: Option<&[u8]>, answers: u16, cut: bool, out: &mut Vec<u8>) {
        let flags = 0x8080
            | u16::from(self.opcode) << 11
            | u16::from(cut) << 9
            | u16::from(self.recursion_desired) << 8
            | (code as u16 & 0xf);
        out.clear();
        out.extend(self.id.to_be_bytes());
        out.extend(flags.to_be_bytes());
        for count in [u16::from(question.is_some()), answers, 0, u16::from(self.edns.is_some())] {
            out.extend(count.to_be_bytes());
        }
        out.extend(question.unwrap_or_default());
    }

    /// Our own size, no options (RFC 6891 section 7), the upper bits of the code.
    fn write_edns(self, code: Rcode, out: &mut Vec<u8>) {
        if self.edns.is_some() {
            out.push(0);
            out.extend(types::OPT.to_be_bytes());
            out.extend(MAX_UDP.to_be_bytes());
            out.extend((u32::from(code as u16 >> 4) << 24).to_be_bytes());
            out.extend([0, 0]);
        }
    }
}

/// Reads an uncompressed name; whether it was plain. A question's name has nothing before it to point to, so a
/// compression pointer is malformed and loops can't exist.
fn read_name(reader: &mut Reader<'_>, name: &mut String) -> Result<bool, &'static str> {
    const CUT: &str = "the name is cut short";
    let (mut plain, mut wire) = (true, 1_usize);
    loop {
        let len = usize::from(reader.u8().ok_or(CUT)?);
        if len == 0 {
            return Ok(plain);
        }
        if len > 63 {
            return Err("a label of the name is compressed or of an unknown kind");
        }
        wire = wire.saturating_add(len).saturating_add(1);
        if wire > MAX_NAME {
            return Err("the name is longer than 255 bytes");
        }
        if !name.is_empty() {
            name.push('.');
        }
        for byte in reader.bytes(len).ok_or(CUT)? {
            if byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'_' {
                name.push(char::from(byte.to_ascii_lowercase()));
            } else {
                plain = false;
                // Writing to a string can't fail.
                let _ = write!(name, "\\{byte:03}");
            }
        }
    }
}

/// Type, class and TTL of a record whose content doesn't matter.
fn additional(reader: &mut Reader<'_>) -> Option<(u16, u16, u32)> {
    let mut wire = 0_usize;
    loop {
        match reader.u8()? {
            0 => break,
            len @ 1..=63 => {
                wire = wire.saturating_add(usize::from(len));
                reader.bytes(usize::from(len)).filter(|_| wire < MAX_NAME)?;
            }
            // A pointer ends a name.
            0xc0.. => {
                reader.u8()?;
                break;
            }
            _ => return None,
        }
    }
    let fixed = (reader.u16()?, reader.u16()?, reader.u32()?);
    let len = usize::from(reader.u16()?);
    reader.bytes(len)?;
    Some(fixed)
}

#[cfg(any(test, fuzzing))]
pub(super) mod properties;
#[cfg(test)]
mod tests;
