use super::*;

const CODED: &str =
    "17\r\ndata: {\"a\":\"sent-at-12 \r\n4;x=y\r\n\"}\n\n\r\nE\r\ndata: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1";

/// Reads [`CODED`] in pieces of so many bytes.
fn read(coded: &str, pieces: usize) -> (Vec<u64>, bool, String) {
    let (mut body, mut lines, mut bytes, mut moments) =
        (Chunked::default(), Lines::default(), Vec::new(), Vec::new());
    let mut over = false;
    for piece in coded.as_bytes().chunks(pieces) {
        bytes.extend_from_slice(piece);
        if !over {
            over = body.take(&mut bytes, &mut lines.text).unwrap();
        }
        while let Some(moment) = lines.next().unwrap() {
            moments.push(moment);
        }
    }
    (moments, over && lines.done, String::from_utf8(bytes).unwrap())
}

#[test]
fn moments_are_found_wherever_the_stream_is_cut() {
    for pieces in [1, 2, 3, 7, 1000] {
        assert_eq!(read(CODED, pieces), (vec![12], true, "HTTP/1.1".to_owned()), "{pieces}");
    }
    assert!(!read(&CODED.replace("[DONE]", "[NONE]"), 5).1);
}

#[test]
fn percentiles_are_microseconds() {
    let nanoseconds: Vec<u64> = (0..=100).map(|n| n * 1000).collect();
    assert_eq!(ranked(&nanoseconds), Some((50.0, 99.0)));
    assert_eq!(ranked(&[]), None);
}
