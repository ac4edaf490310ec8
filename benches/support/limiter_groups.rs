//! Decisions in the process of their caller, as cases of which instructions are counted.

use std::hint::black_box;

use crate::{
    callgrind::Group,
    in_process::{InProcess, NOW},
    of_key::OfKey,
};

/// One descriptor of one entry and one tier, with making the request.
pub const EMBEDDED: Group = Group {
    name: "embedded",
    prepare: |tenant| {
        let (limiter, tenant) = (InProcess::new(tenant), tenant.to_owned());
        Box::new(move || assert!(black_box(&limiter).admits(black_box(&tenant), NOW)))
    },
    cases: &["acme"],
};

/// The same for a key whose rule and counter are found.
pub const PREPARED_KEY: Group = Group {
    name: "prepared_key",
    prepare: |tenant| {
        let limiter = OfKey::new(tenant);
        Box::new(move || assert!(black_box(&limiter).admits(NOW)))
    },
    cases: &["acme"],
};
