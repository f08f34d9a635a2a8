//! The vectors of `golden/tlp.txt`, made with an independent codec, decoded and encoded (see `golden/make_vectors.py`).

// The text is ours: a line that does not read is a mistake to stop at.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use pcie::{
    AddressType, Attributes, Bdf, Completion, CompletionStatus, ConfigKind, ConfigRequest, Header,
    MemoryRequest, Message, MessageCode, MessageRouting, Tag, TlpView,
};

/// One vector: its fields by name, and the packet.
struct Vector {
    fields: BTreeMap<String, String>,
    bytes: Vec<u8>,
}

impl Vector {
    fn parse(text: &str) -> Self {
        let mut fields = BTreeMap::new();
        let mut bytes = Vec::new();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap();
            if key == "hex" {
                let digits = (0..value.len()).step_by(2);
                bytes.extend(digits.map(|at| u8::from_str_radix(&value[at..at + 2], 16).unwrap()));
            } else {
                assert!(fields.insert(key.to_owned(), value.to_owned()).is_none(), "{line} twice");
            }
        }
        let vector = Self { fields, bytes };
        vector.complete_payload()
    }

    /// Checks the payload that is listed, or adds the one that is too long for it.
    fn complete_payload(mut self) -> Self {
        let Some(payload) = self.fields.get("payload") else { return self };
        let (count, seed) = payload.split_once(" seed ").unwrap();
        let (count, seed) = (number(count) as usize, number(seed) as usize);
        let payload: Vec<u8> = (0..count).map(|index| (seed + 7 * index) as u8).collect();
        if count > 256 {
            self.bytes.extend_from_slice(&payload);
        }
        assert!(self.bytes.ends_with(&payload), "{}", self.name());
        self
    }

    fn name(&self) -> &str {
        &self.fields["name"]
    }

    fn number(&self, key: &str) -> u64 {
        number(self.fields.get(key).unwrap_or_else(|| panic!("{} has no {key}", self.name())))
    }

    fn bdf(&self, key: &str) -> Bdf {
        self.fields[key].parse().unwrap()
    }

    fn tag(&self) -> Tag {
        Tag::new(self.number("tag") as u16).unwrap()
    }

    fn attributes(&self) -> Attributes {
        Attributes::from_bits(self.number("attributes") as u8).unwrap()
    }

    /// The header these fields describe.
    fn header(&self) -> Header {
        match self.fields["kind"].as_str() {
            "memory-read" => Header::MemoryRead(self.memory()),
            "memory-write" => Header::MemoryWrite(self.memory()),
            "config-read" => Header::ConfigRead(self.config()),
            "config-write" => Header::ConfigWrite(self.config()),
            "completion" => Header::Completion(self.completion()),
            "message" => Header::Message(self.message()),
            other => panic!("{}: kind {other}", self.name()),
        }
    }

    fn memory(&self) -> MemoryRequest {
        let request = MemoryRequest {
            requester: self.bdf("requester"),
            tag: self.tag(),
            address: self.number("address"),
            length_dw: self.number("length-dw") as u16,
            first_be: self.number("first-be") as u8,
            last_be: self.number("last-be") as u8,
            traffic_class: self.number("traffic-class") as u8,
            attributes: self.attributes(),
            address_type: match self.number("at") {
                0 => AddressType::Untranslated,
                1 => AddressType::TranslationRequest,
                2 => AddressType::Translated,
                other => panic!("{}: at {other}", self.name()),
            },
            poisoned: self.number("poisoned") == 1,
        };
        if let Some(range) = self.fields.get("range") {
            let (start, bytes) = range.split_once(' ').unwrap();
            let (start, bytes) = (number(start), number(bytes) as usize);
            let made = MemoryRequest::new(request.requester, request.tag, start, bytes).unwrap();
            let MemoryRequest { traffic_class, attributes, address_type, poisoned, .. } = request;
            let made = MemoryRequest { traffic_class, attributes, address_type, poisoned, ..made };
            assert_eq!(made, request, "{}: the request for {range}", self.name());
            assert_eq!(request.byte_range(), (start, bytes), "{}", self.name());
        }
        request
    }

    fn config(&self) -> ConfigRequest {
        assert_eq!((self.number("traffic-class"), self.number("attributes")), (0, 0), "{}", self.name());
        ConfigRequest {
            requester: self.bdf("requester"),
            tag: self.tag(),
            target: self.bdf("target"),
            register: self.number("register") as u16,
            first_be: self.number("first-be") as u8,
            kind: if self.number("type") == 0 { ConfigKind::Type0 } else { ConfigKind::Type1 },
            poisoned: self.number("poisoned") == 1,
        }
    }

    fn completion(&self) -> Completion {
        Completion {
            completer: self.bdf("completer"),
            requester: self.bdf("requester"),
            tag: self.tag(),
            status: match self.number("status") {
                0 => CompletionStatus::Success,
                1 => CompletionStatus::UnsupportedRequest,
                2 => CompletionStatus::RequestRetry,
                4 => CompletionStatus::CompleterAbort,
                other => CompletionStatus::Reserved(other as u8),
            },
            byte_count: self.number("byte-count") as u16,
            lower_address: self.number("lower-address") as u8,
            length_dw: self.number("length-dw") as u16,
            traffic_class: self.number("traffic-class") as u8,
            attributes: self.attributes(),
            poisoned: self.number("poisoned") == 1,
        }
    }

    fn message(&self) -> Message {
        Message {
            requester: self.bdf("requester"),
            tag: self.tag(),
            code: MessageCode(self.number("code") as u8),
            routing: match self.number("routing") {
                0 => MessageRouting::ToRootComplex,
                1 => MessageRouting::ByAddress,
                2 => MessageRouting::ById,
                3 => MessageRouting::Broadcast,
                4 => MessageRouting::Local,
                5 => MessageRouting::GatherToRootComplex,
                other => panic!("{}: routing {other}", self.name()),
            },
            length_dw: self.number("length-dw") as u16,
            dw2: self.number("dw2") as u32,
            dw3: self.number("dw3") as u32,
            traffic_class: self.number("traffic-class") as u8,
            attributes: self.attributes(),
            poisoned: self.number("poisoned") == 1,
        }
    }
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

fn vectors() -> Vec<Vector> {
    // Comments end with the first empty line, as vectors do.
    let blocks = include_str!("golden/tlp.txt").trim_end().split("\n\n").skip(1);
    blocks.map(Vector::parse).collect()
}

#[test]
fn every_vector_decodes_to_its_fields() {
    for vector in vectors() {
        let view = TlpView::parse(&vector.bytes).unwrap_or_else(|error| panic!("{}: {error}", vector.name()));
        assert_eq!(view.header(), vector.header(), "{}", vector.name());
        assert_eq!(view.total_len(), vector.bytes.len(), "{}", vector.name());
        let payload = vector.fields.get("payload").map_or(0, |text| number(text.split_once(' ').unwrap().0));
        assert_eq!(view.payload().len() as u64, payload, "{}", vector.name());
    }
}

#[test]
fn every_vector_encodes_to_its_bytes() {
    for vector in vectors() {
        let header = vector.header();
        let encoded = header.encode();
        assert_eq!(encoded.as_bytes(), &vector.bytes[..header.header_len()], "{}", vector.name());
        assert_eq!(header.total_len(), vector.bytes.len(), "{}", vector.name());
    }
}

#[test]
fn the_vectors_cover_what_they_are_for() {
    let vectors = vectors();
    assert!(vectors.len() >= 60, "{} vectors", vectors.len());
    let count = |kind: &str| vectors.iter().filter(|vector| vector.fields["kind"] == kind).count();
    for kind in ["memory-read", "memory-write", "config-read", "config-write", "completion", "message"] {
        assert!(count(kind) >= 3, "{kind}");
    }
    assert!(vectors.iter().any(|vector| vector.number("tag") > 255));
    assert!(vectors.iter().any(|vector| vector.bytes.len() == 16 + 4096));
}
