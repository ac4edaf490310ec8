//! The recorded requests and answers.

use std::{collections::BTreeMap, io::Read as _};

use flate2::read::GzDecoder;
use serde_json::Value;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

/// What envoyproxy/ratelimit did in one environment. `README.md` describes the fields.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) rules: BTreeMap<String, String>,
    pub(crate) requests: Vec<Value>,
    pub(crate) answers: Vec<Value>,
    pub(crate) keys: Vec<(String, u64)>,
    pub(crate) stats: BTreeMap<String, u64>,
    pub(crate) rlconfig: Vec<String>,
}

/// Reads the recordings of all environments.
pub(crate) fn load() -> Vec<Recording> {
    let mut text = String::new();
    let packed: &[u8] = include_bytes!("envoyproxy-ratelimit.json.gz");
    GzDecoder::new(packed).read_to_string(&mut text).expect("the recording is compressed UTF-8 text");
    let recordings: Value = serde_json::from_str(&text).expect("the recording is JSON");
    let recordings: Vec<Recording> = array(&recordings).iter().map(Recording::from).collect();
    let requests: usize = recordings.iter().map(|recording| recording.requests.len()).sum();
    assert_eq!((recordings.len(), requests), (7, 1_680), "the recording is complete");
    recordings
}

// === impl Recording ===

impl From<&Value> for Recording {
    fn from(recording: &Value) -> Self {
        Self {
            env: object(&recording["env"], string),
            rules: object(&recording["rules"], string),
            requests: array(&recording["requests"]).clone(),
            answers: array(&recording["answers"]).clone(),
            keys: array(&recording["keys"]).iter().map(|key| (string(&key[0]), number(&key[1]))).collect(),
            stats: object(&recording["stats"], number),
            rlconfig: array(&recording["rlconfig"]).iter().map(string).collect(),
        }
    }
}

/// Converts a recorded request.
pub(crate) fn request(request: &Value) -> RateLimitRequest {
    RateLimitRequest {
        domain: string(&request["domain"]),
        descriptors: array(&request["descriptors"]).iter().map(descriptor).collect(),
        hits_addend: u32::try_from(number(&request["hits"])).expect("hits of a request have 32 bits"),
    }
}

fn descriptor(descriptor: &Value) -> RateLimitDescriptor {
    let entry = |entry: &Value| Entry { key: string(&entry[0]), value: string(&entry[1]) };
    let limit = |limit: &Value| RateLimitOverride {
        requests_per_unit: u32::try_from(number(&limit[0])).expect("a limit has 32 bits"),
        unit: i32::try_from(number(&limit[1])).expect("a unit is a small number"),
    };
    RateLimitDescriptor {
        entries: array(&descriptor["entries"]).iter().map(entry).collect(),
        limit: descriptor.get("limit").map(limit),
        hits_addend: descriptor.get("hits").map(number),
        ..RateLimitDescriptor::default()
    }
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().expect("the recording has an array here")
}

fn object<T>(value: &Value, convert: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    let fields = value.as_object().expect("the recording has an object here");
    fields.iter().map(|(name, value)| (name.clone(), convert(value))).collect()
}

fn string(value: &Value) -> String {
    value.as_str().expect("the recording has a text here").to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("the recording has a number here")
}
