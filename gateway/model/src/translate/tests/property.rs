//! What holds of all requests, all cuts of a stream and all bytes.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::request::{Choice, Effort, FAILED, Image, Part, Raw, Said, Tool, Turn, Who};
use super::super::{
    Direction, LeftOut, Stream, answer, chat_request, error, members, messages_request, request,
};
use super::{messages_stream, sse, stream};

fn raw(text: &str) -> Raw {
    Raw::object(text).unwrap()
}

fn number(text: &str) -> Raw {
    Raw(serde_json::from_str(text).unwrap())
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{1,12}".prop_filter("stands for a failure", |text| text != FAILED)
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_-]{1,12}"
}

fn arguments() -> impl Strategy<Value = Raw> {
    prop_oneof![
        Just(raw("{}")),
        Just(raw(r#"{"a": 1.50, "a": [9007199254740993]}"#)),
        Just(raw(r#"{"ü":"\n"}"#))
    ]
}

fn image() -> impl Strategy<Value = Part> {
    let data = ("[a-z]{1,5}/[a-z]{1,5}", "[A-Za-z0-9+/]{0,20}={0,2}");
    prop_oneof![
        data.prop_map(|(media_type, data)| Part::Image(Image::Data { media_type, data })),
        "https://[a-z]{1,9}/[a-z?,;:]{0,9}".prop_map(|url| Part::Image(Image::Url(url))),
    ]
}

fn result() -> impl Strategy<Value = Part> {
    let texts = vec(text().prop_map(Part::Text), 0..3);
    (name(), texts, any::<bool>()).prop_map(|(of, parts, failed)| Part::Result { of, parts, failed })
}

fn exchange() -> impl Strategy<Value = Vec<Turn>> {
    let said = prop_oneof![text().prop_map(Part::Text), image()];
    let user = (vec(result(), 0..3), vec(said, 0..3)).prop_map(|(results, said)| [results, said].concat());
    let call =
        (name(), name(), arguments()).prop_map(|(id, name, arguments)| Part::Call { id, name, arguments });
    let assistant = (vec(text().prop_map(Part::Text), 0..3), vec(call, 0..3));
    let assistant = assistant.prop_map(|(texts, calls)| [texts, calls].concat());
    let some = |parts: &Vec<Part>| !parts.is_empty();
    let late = vec(text().prop_map(Part::Text), 0..2);
    (user.prop_filter("empty", some), late, assistant.prop_filter("empty", some)).prop_map(
        |(user, system, assistant)| {
            let turn = |who, parts: Vec<Part>| (!parts.is_empty()).then_some(Turn { who, parts });
            [turn(Who::User, user), turn(Who::System, system), turn(Who::Assistant, assistant)]
                .into_iter()
                .flatten()
                .collect()
        },
    )
}

fn tool() -> impl Strategy<Value = Tool> {
    (name(), option::of(text()), arguments(), option::of(any::<bool>()))
        .prop_map(|(name, description, schema, strict)| Tool { name, description, schema, strict })
}

prop_compose! {
    /// Requests in normal form: what both APIs can say, once.
    fn said()(
        system in vec(text(), 0..3),
        turns in vec(exchange(), 0..4),
        max_output in 1..u64::from(u32::MAX),
        temperature in option::of(prop_oneof![Just(number("0.70")), Just(number("1"))]),
        top_p in option::of(Just(number("0.95"))),
        stop in vec(text(), 0..=4),
        stream in any::<bool>(),
        tools in vec(tool(), 1..3),
        choice in prop_oneof![
            Just(Choice::Auto), Just(Choice::Any), name().prop_map(Choice::Tool)],
        serial in any::<bool>(),
        user in option::of(text()),
        (effort, format) in (
            option::of(prop_oneof![Just(Effort::Low), Just(Effort::Max)]), option::of(arguments())),
    ) -> Said {
        Said {
            system, turns: turns.into_iter().flatten().collect(), max_output: Some(max_output), temperature, top_p, stop,
            stream, usage: stream, tools, choice: Some(choice), serial, user, effort, format,
        }
    }
}

proptest! {
    #[test]
    fn a18_a_request_means_the_same_there_and_back(said in said()) {
        let mut none = LeftOut::default();
        let chat = chat_request::write(&said, "m");
        let read = chat_request::read(members::whole(&chat).unwrap(), &mut none).unwrap();
        prop_assert_eq!(&read, &said);
        let messages = request(Direction::ChatToMessages, &chat, "m", 1).unwrap().body;
        let read = messages_request::read(members::whole(&messages).unwrap(), &mut none).unwrap();
        prop_assert_eq!(&read, &said);
        let back = request(Direction::MessagesToChat, &messages, "m", 1).unwrap().body;
        prop_assert_eq!(String::from_utf8(back).unwrap(), String::from_utf8(chat).unwrap());
        prop_assert!(none.0.is_empty());
    }

    #[test]
    fn a18_a_split_stream_gives_what_the_whole_gives(cuts in vec(1..40usize, 1..200), crlf in any::<bool>()) {
        let messages = sse(&messages_stream());
        let chat = stream(Direction::ChatToMessages, messages.as_bytes()).0;
        for (direction, mut whole) in [(Direction::ChatToMessages, messages), (Direction::MessagesToChat, chat)] {
            if crlf {
                whole = whole.replace('\n', "\r\n");
            }
            let expect = stream(direction, whole.as_bytes());
            prop_assert!(expect.1.ended());
            let (mut stream, mut out, mut rest) = (Stream::new(direction, true, 7), Vec::new(), whole.as_bytes());
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                stream.feed(piece, &mut out);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            stream.finish(&mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), expect.0);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_end_a_stream_cleanly(bytes in vec(any::<u8>(), 0..400)) {
        for direction in [Direction::ChatToMessages, Direction::MessagesToChat] {
            prop_assert!(request(direction, &bytes, "m", 1).is_err());
            prop_assert!(answer(direction, &bytes, 1).is_err());
            prop_assert_eq!(error(direction, 500, &bytes).status, 500);
            prop_assert!(!stream(direction, &bytes).1.ended());
        }
    }

    #[test]
    fn a_stream_with_a_byte_changed_never_panics(at in 0..2000usize, to in any::<u8>()) {
        let messages = sse(&messages_stream());
        let chat = stream(Direction::ChatToMessages, messages.as_bytes()).0;
        for (direction, whole) in [(Direction::ChatToMessages, messages), (Direction::MessagesToChat, chat)] {
            let mut bytes = whole.into_bytes();
            let at = at % bytes.len();
            bytes[at] = to;
            let (mut stream, mut out) = (Stream::new(direction, true, 7), Vec::new());
            stream.feed(&bytes, &mut out);
            stream.finish(&mut out);
            // It ended, or says why not: never neither, never both.
            prop_assert_ne!(stream.ended(), stream.fault().is_some());
        }
    }
}
