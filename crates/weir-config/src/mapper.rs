//! Reads the file of `PROMETHEUS_MAPPER_YAML`: a mapping configuration of `statsd_exporter`.
//!
//! ```yaml
//! mappings:
//!   - match: ratelimit.service.rate_limit.*.*.total_hits
//!     name: hits_total
//!     labels: {domain: $1, rule: $2}
//! ```
//!
//! Options that weir cannot follow are errors with a reason; options without an effect on its stats are ignored.

use std::path::Path;

use super::{
    error::{ConfigErrors, ConfigReport, Finding},
    fields::{Field, Fields, number, wrong},
    keys::KeyLevel,
    load::read_file,
    observer::{self, ObserverOptions},
    scalar::brief,
    yaml::{self, Value, YamlNode},
};
use weir_observe::mapper::RESERVED;
use weir_observe::{
    mapper::{Compile, Mapper, Mapping, Matcher, Observer, SeriesTemplate, StatKind},
    template::Template,
};

/// Every stat without a glob is compared with each of them.
const MAX_REGEXES: usize = 1_000;

struct Defaults {
    regex: bool,
    compile: Compile,
    observer: ObserverOptions,
}

/// Reads the file `path`, whose regular expressions `compile` compiles.
pub fn read_mapper(path: &Path, compile: Compile) -> Result<(Mapper, Vec<Finding>), ConfigErrors> {
    let mut report = ConfigReport::of_file(&path.display().to_string());
    let mapper =
        read_file(path, &mut report).map(|text| read(&text, compile, &mut report)).unwrap_or_default();
    report.finish().map(|warnings| (mapper, warnings))
}

fn read(text: &str, compile: Compile, report: &mut ConfigReport) -> Mapper {
    let root = report.root_of(yaml::parse(text), "error loading mapper file");
    let root = root.filter(|root| !root.is_null());
    let Some(fields) =
        root.as_deref().and_then(|root| Fields::new(root, KeyLevel::Mapper, "a mapper file", report))
    else {
        return Mapper::default();
    };
    let defaults = fields.get("defaults").map(|field| field.value);
    let defaults =
        defaults.and_then(|node| Fields::new(node, KeyLevel::MapperDefaults, "'defaults'", report));
    let most_specific = defaults.as_ref().is_some_and(|fields| fields.flag("glob_disable_ordering", report));
    let defaults = Defaults {
        compile,
        regex: defaults.as_ref().is_some_and(|fields| is_regex(fields, false, report)),
        observer: defaults.as_ref().map(|fields| observer::read(fields, report)).unwrap_or_default(),
    };
    let mut mapper = Mapper::new(most_specific);
    let nodes: Vec<&YamlNode> = fields.maps("mappings", report).collect();
    for node in nodes {
        if let Some((matcher, mapping)) = mapping(node, &defaults, report) {
            mapper.push(matcher, mapping);
        }
        if mapper.regexes() > MAX_REGEXES {
            report.error(node.at, format!("more than {MAX_REGEXES} mappings are regular expressions"));
            break;
        }
    }
    mapper
}

fn mapping(node: &YamlNode, defaults: &Defaults, report: &mut ConfigReport) -> Option<(Matcher, Mapping)> {
    let fields = Fields::new(node, KeyLevel::Mapping, "a mapping", report)?;
    let matcher = matcher(&fields, defaults, report);
    let kind = fields.choice(
        "match_metric_type",
        &[("counter", StatKind::Counter), ("gauge", StatKind::Gauge), ("observer", StatKind::Observer)],
        report,
    );
    let is_dropped = fields.choice("action", &[("map", false), ("drop", true)], report) == Some(true);
    fields.flag("honor_labels", report);
    let scale = scale(&fields, report);
    let own_observer = observer::read(&fields, report);
    let has_times = kind.is_none_or(|kind| kind == StatKind::Observer);
    let observer = has_times.then(|| own_observer.resolve(&defaults.observer, scale));
    let observer = observer.unwrap_or(Observer::Histogram(None));
    let matcher = matcher?;
    if is_dropped {
        return Some((matcher, Mapping { kind, series: None }));
    }
    let Some(name) = fields.text("name", report) else {
        report.error(fields.at, "the mapping has no 'name', the name of the metric");
        return None;
    };
    let name = metric_name(&name, &matcher, report);
    let labels = labels(&fields, &matcher, report);
    if matches!(observer, Observer::Summary(_)) && labels.iter().any(|(name, _)| name == "quantile") {
        report.error(fields.at, "invalid label 'quantile': it is Prometheus' in a summary");
    }
    let help = fields.text("help", report).map(|help| help.value.replace(['\n', '\\'], " "));
    Some((matcher, Mapping { kind, series: Some(SeriesTemplate { name, labels, help, scale, observer }) }))
}

fn matcher(fields: &Fields<'_>, defaults: &Defaults, report: &mut ConfigReport) -> Option<Matcher> {
    let regex = is_regex(fields, defaults.regex, report);
    let Some(text) = fields.text("match", report) else {
        report.error(fields.at, "the mapping has no 'match', the names of the stats that it applies to");
        return None;
    };
    let written = brief(text.value);
    let invalid = if regex {
        (defaults.compile)(text.value)
            .map(Matcher::Regex)
            .map_err(|reason| format!("invalid regular expression '{written}': {reason}"))
    } else {
        Matcher::glob(text.value).ok_or_else(|| {
            format!(
                "invalid match '{written}': write steps of letters, digits, '_' and '-' with dots between them, '*' for \
                 any one step; other patterns need 'match_type: regex'"
            )
        })
    };
    invalid.inspect_err(|message| report.error(text.at, message)).ok()
}

fn is_regex(fields: &Fields<'_>, default: bool, report: &mut ConfigReport) -> bool {
    fields.choice("match_type", &[("glob", false), ("regex", true)], report).unwrap_or(default)
}

fn scale(fields: &Fields<'_>, report: &mut ConfigReport) -> f64 {
    let field = fields.get("scale");
    field.and_then(|field| number(field.value, "scale", report)).map_or(1.0, |scale| scale.value)
}

fn metric_name(name: &Field<&str>, matcher: &Matcher, report: &mut ConfigReport) -> Template {
    let template = template(name, matcher, report);
    let is_word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let starts_badly = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let written = brief(name.value);
    if template.is_empty()
        || template.texts().any(|(first, text)| !is_word(text) || first && starts_badly(text))
    {
        report.error(
            name.at,
            format!(
                "invalid metric name '{written}': write letters, digits, '_', and $1 for the first group"
            ),
        );
    }
    let reserved = template
        .texts()
        .find_map(|(first, text)| RESERVED.into_iter().find(|start| first && text.starts_with(start)));
    if let Some(start) = reserved {
        report.error(
            name.at,
            format!("invalid metric name '{written}': names that begin with {start} are weir's own"),
        );
    }
    template
}

fn labels(fields: &Fields<'_>, matcher: &Matcher, report: &mut ConfigReport) -> Vec<(String, Template)> {
    let Some(field) = fields.get("labels") else { return Vec::new() };
    let Value::Map(entries) = &field.value.value else {
        report.error(field.at, wrong("labels", "a mapping of names and values", field.value));
        return Vec::new();
    };
    let mut labels = Vec::new();
    for (key, value) in entries {
        let (Some(name), Some(text)) = (key.scalar(), value.scalar()) else {
            report.error(key.at, "a label is a name and a text, such as 'domain: $1'");
            continue;
        };
        if !is_label(name.text()) {
            let name = name.brief();
            let right = "letters, digits and '_', not a digit first; 'le' and names that begin with '__' are Prometheus'";
            report.error(key.at, format!("invalid label '{name}': write {right}"));
        }
        let text = Field { key_at: key.at, at: value.at, value: text.text() };
        labels.push((name.text().to_owned(), template(&text, matcher, report)));
    }
    // the labels of a series have one order, in whichever mapping they are
    labels.sort_by(|(name, _), (other, _)| name.cmp(other));
    for pair in labels.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        report.error(field.at, format!("the label '{}' is there twice", pair[0].0));
    }
    labels
}

fn is_label(name: &str) -> bool {
    let starts_well =
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !name.starts_with("__");
    starts_well && name != "le" && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Like `statsd_exporter`, takes a group that does not exist for an empty one.
fn template(text: &Field<&str>, matcher: &Matcher, report: &mut ConfigReport) -> Template {
    let (template, missing) = Template::parse(text.value, |name| matcher.group(name));
    for name in missing {
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = name.split_at(digits);
        let hint = if digits > 0 && !rest.is_empty() && matcher.group(number).is_some() {
            format!("; did you mean '${{{number}}}{rest}'?")
        } else {
            String::new()
        };
        let name = brief(&name);
        report.warn(text.at, format!("the match has no group '{name}', so '${name}' is empty{hint}"));
    }
    template
}
