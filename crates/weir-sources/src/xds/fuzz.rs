//! A fuzz target: a resource of a control plane.

use prost::Message as _;

use super::{
    parts::PartBounds,
    resource::{ResourceError, TYPE_URL, document},
    response::Resource,
};
use weir_config::{Document, Options, load_documents};
use weir_proto::ratelimit::config::ratelimit::v3::RateLimitConfig;

/// Decodes a resource and compiles its rules. What the generated type decodes must be the same rules.
pub fn resource(input: &[u8]) {
    // also as a response, and whatever it holds
    let _ = PartBounds { parts: 100, paths: 1_000 }.check(input);
    let of = |value: Vec<u8>| document(Resource { type_url: TYPE_URL.to_owned(), value: value.into() });
    let ours = of(input.to_vec());
    match RateLimitConfig::decode(input) {
        Ok(theirs) => {
            let again = of(theirs.encode_to_vec());
            assert_eq!(format!("{ours:?}"), format!("{again:?}"));
            assert_eq!(ours.as_ref().map(|ours| ours.name.as_str()), Ok(theirs.name.as_str()));
        }
        // the generated type stops at a depth of 100 messages; otherwise both fail
        Err(error) => {
            let too_deep = error.to_string().contains("recursion");
            let failed = matches!(ours, Err(ResourceError::Malformed(_) | ResourceError::TooDeep(_)));
            assert!(too_deep || failed, "{error}: {ours:?}");
        }
    }
    if let Ok(document) = ours {
        let other = Document { name: "other".into(), ..document.clone() };
        let _ = load_documents(vec![document.clone()], &Options::default());
        let merged = Options { merge_domains: true, ..Options::default() };
        let _ = load_documents(vec![document, other], &merged);
    }
}
