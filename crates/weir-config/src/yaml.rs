//! Parses a YAML document into a tree with positions. The only file that uses the YAML crate.
//!
//! The tree is built from the parser's events and not through serde, for three reasons: a value keeps its spelling
//! (`007` has three characters), every duplicate key is reported, and an alias is shared instead of copied, so that an
//! alias bomb is rejected before it takes memory.
//!
//! Entries of a mapping mean what they mean to yaml.v2, with which envoyproxy/ratelimit reads its rules: see [`NodeSlot`].

use std::{
    collections::{HashMap, hash_map},
    mem,
    rc::Rc,
};

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::scalar::Scalar;

type ParsedEvent<'t> = Result<(Event<'t>, Span), ScanError>;

/// Counts aliases resolved. Bounded because the walk of the tree is recursive; a level of rules takes two.
pub(super) const MAX_DEPTH: usize = 128;

/// About 150,000 rules. Each use of an alias counts all of its nodes.
pub(super) const MAX_NODES: usize = 2_000_000;

/// Four times the largest file. Each use of an alias counts, since rules hold a copy for each use.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 20;

const MAX_WARNINGS: usize = 100;

/// What helps against a fault, by a part of the parser's message.
const HINTS: [(&str, &str); 5] = [
    ("unknown anchor", ALIAS),
    ("an anchor or alias", ALIAS),
    ("while parsing a block", "; compare the indentation of this line with that of the lines around it"),
    ("tabs disallowed", "; indent with spaces"),
    (
        "mapping values are not allowed",
        "; a text that contains ': ' needs quotes, unless the indentation is wrong",
    ),
];

const ALIAS: &str = ": a value that begins with '*' is an alias of YAML, and one that begins with '&' an anchor; write \
                     it in quotes, such as '*.pdf'";

/// Line and column from 1, in characters. The default, 0, stands for the whole document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct YamlPosition {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Shared by reference count, since an alias is the node of its anchor.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: Value,
    pub(super) at: YamlPosition,
    size: Size,
    height: usize,
}

/// What nodes hold, aliases resolved.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: usize,
    text_bytes: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<YamlNode>>),
    /// In the order in which the keys first appear. Scalar keys are unique.
    Map(Vec<(Rc<YamlNode>, Rc<YamlNode>)>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlFault {
    pub(super) at: YamlPosition,
    pub(super) message: String,
}

#[derive(Debug)]
pub(super) struct YamlDocument {
    /// Null if the document is empty.
    pub(super) root: Result<Rc<YamlNode>, YamlFault>,
    /// Allowed, but probably mistakes: the first [`MAX_WARNINGS`].
    pub(super) warnings: Vec<YamlFault>,
}

pub(super) fn parse(text: &str) -> YamlDocument {
    let mut builder = TreeBuilder::default();
    let read = builder.read(Parser::new_from_str(text));
    let empty = || Rc::new(YamlNode::leaf(Scalar::new("", true), YamlPosition::default()));
    YamlDocument { root: read.map(|()| builder.root.unwrap_or_else(empty)), warnings: builder.warnings.0 }
}

// === impl YamlPosition ===

impl From<Span> for YamlPosition {
    fn from(span: Span) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: count(span.start.line()), column: count(span.start.col() + 1) }
    }
}

// === impl YamlFault ===

impl YamlFault {
    pub(super) fn new(at: YamlPosition, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    fn too_deep(at: YamlPosition) -> Self {
        Self::new(at, format!("nested deeper than {MAX_DEPTH} levels"))
    }
}

impl From<&ScanError> for YamlFault {
    fn from(error: &ScanError) -> Self {
        let at = YamlPosition::from(Span::empty(*error.marker()));
        // the parser reads ahead, so its own limit of nested brackets applies first
        if *error.kind() == ErrorKind::RecursionLimitExceeded {
            return Self::too_deep(at);
        }
        let hint = HINTS.iter().find(|(text, _)| error.info().contains(text));
        Self::new(at, format!("{}{}", error.info(), hint.map_or("", |(_, hint)| hint)))
    }
}

#[derive(Default)]
struct Warnings(Vec<YamlFault>);

// === impl Warnings ===

impl Warnings {
    fn add(&mut self, at: YamlPosition, message: impl FnOnce() -> String) {
        if self.0.len() < MAX_WARNINGS {
            self.0.push(YamlFault { at, message: message() });
        }
    }
}

// === impl YamlNode ===

impl YamlNode {
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => scalar.kind(),
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    pub(super) fn scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        self.scalar().is_some_and(Scalar::is_null)
    }

    pub(super) fn leaf(scalar: Scalar, at: YamlPosition) -> Self {
        let size = Size { nodes: 1, text_bytes: scalar.written().len() };
        Self { value: Value::Scalar(scalar), at, size, height: 1 }
    }

    pub(super) fn list(items: Vec<Rc<Self>>, at: YamlPosition) -> Self {
        let (size, height) = measure(&items);
        Self { value: Value::List(items), at, size, height }
    }

    pub(super) fn map(entries: Vec<(Rc<Self>, Rc<Self>)>, at: YamlPosition) -> Self {
        let (size, height) = measure(entries.iter().flat_map(|(key, value)| [key, value]));
        Self { value: Value::Map(entries), at, size, height }
    }
}

fn measure<'a>(parts: impl IntoIterator<Item = &'a Rc<YamlNode>>) -> (Size, usize) {
    let (size, height) = parts
        .into_iter()
        .fold((Size::NODE, 0), |(size, height), node| (size.plus(node.size), height.max(node.height)));
    (size, height + 1)
}

// === impl Size ===

impl Size {
    const NODE: Self = Self { nodes: 1, text_bytes: 0 };

    fn plus(self, other: Self) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            text_bytes: self.text_bytes.saturating_add(other.text_bytes),
        }
    }
}

/// Keeps its own stack, so that nesting does not use the thread's.
#[derive(Default)]
struct TreeBuilder {
    root: Option<Rc<YamlNode>>,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Rc<YamlNode>>,
    size: Size,
    warnings: Warnings,
}

struct OpenNode {
    at: YamlPosition,
    anchor: usize,
    parts: Parts,
}

enum Parts {
    List(Vec<Rc<YamlNode>>),
    Map(Entries),
}

#[derive(Default)]
struct Entries {
    /// In the order in which they apply, those of `<<` among them.
    applied: Vec<MapEntry>,
    key: Option<Rc<YamlNode>>,
}

struct MapEntry {
    key: Rc<YamlNode>,
    value: Rc<YamlNode>,
    merged: bool,
}

/// All entries of one key. yaml.v2 decodes entries in the order of the file, and `<<` like the entries that it stands
/// for: a later one overwrites an earlier one, merged or not. It decodes a mapping into the one that the field already
/// has (`rate_limit` is a pointer to a struct), which combines both. Values in a Go map such as `metadata` are decoded
/// anew, and replaced.
struct NodeSlot {
    pub key: Rc<YamlNode>,
    value: Rc<YamlNode>,
    /// Mappings to combine with `value`, then a mapping too. Combining them one by one would take quadratic time.
    earlier: Vec<Rc<YamlNode>>,
    written: Option<YamlPosition>,
}

// === impl TreeBuilder ===

impl TreeBuilder {
    fn read<'t>(&mut self, mut events: impl Iterator<Item = ParsedEvent<'t>>) -> Result<(), YamlFault> {
        let is_done = |builder: &Self| builder.root.as_ref().is_some_and(|root| !root.is_null());
        while !is_done(self) {
            let Some(event) = events.next() else { break };
            let (event, span) = event.map_err(|error| YamlFault::from(&error))?;
            self.add(event, span)?;
        }
        if let Some(at) = next_document(events) {
            self.warnings.add(at, || {
                "only the first document of a file is read; move what follows '---' to a file of its own"
                    .to_owned()
            });
        }
        Ok(())
    }

    fn add(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlFault> {
        let at = YamlPosition::from(span);
        match event {
            // a document without content is not the one of the file
            Event::DocumentStart(..) => self.root = None,
            Event::Scalar(text, style, anchor, tag) => {
                let written = written(&text, style, span);
                let leaf = YamlNode::leaf(Scalar::new(written, is_plain(style, tag.as_deref(), at)?), at);
                self.count(leaf.size, at)?;
                self.node(Rc::new(leaf), anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, Parts::List(Vec::new()))?,
            Event::MappingStart(_, anchor, _) => self.open(at, anchor, Parts::Map(Entries::default()))?,
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
                    return Err(YamlFault::new(at, "an anchor's value must not contain itself"));
                };
                self.count(node.size, at)?;
                self.put(node, at)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at: YamlPosition, anchor: usize, parts: Parts) -> Result<(), YamlFault> {
        self.open.push(OpenNode { at, anchor, parts });
        self.check_depth(0, at)
    }

    fn close(&mut self) -> Result<(), YamlFault> {
        let Some(OpenNode { at, anchor, parts }) = self.open.pop() else {
            return Ok(());
        };
        self.count(Size::NODE, at)?;
        let node = match parts {
            Parts::List(items) => YamlNode::list(items, at),
            Parts::Map(entries) => {
                let merged = entries.applied.iter().filter(|entry| entry.merged);
                let size = merged.fold(Size::default(), |size, MapEntry { key, value, .. }| {
                    size.plus(key.size).plus(value.size)
                });
                self.count(size, at)?;
                let deep = !self.is_in_metadata();
                YamlNode::map(finish(entries.applied, deep, &mut self.warnings), at)
            }
        };
        self.node(Rc::new(node), anchor)
    }

    fn node(&mut self, node: Rc<YamlNode>, anchor: usize) -> Result<(), YamlFault> {
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let at = node.at;
        self.put(node, at)
    }

    /// `at` is the place of the node or of its alias.
    fn put(&mut self, node: Rc<YamlNode>, at: YamlPosition) -> Result<(), YamlFault> {
        self.check_depth(node.height, at)?;
        match self.open.last_mut().map(|open| &mut open.parts) {
            Some(Parts::List(items)) => items.push(node),
            Some(Parts::Map(entries)) => entries.add(node)?,
            None => self.root = Some(node),
        }
        Ok(())
    }

    fn is_in_metadata(&self) -> bool {
        self.open.iter().any(|open| match &open.parts {
            Parts::Map(Entries { key: Some(key), .. }) => {
                key.scalar().is_some_and(|scalar| scalar.text() == "metadata")
            }
            Parts::Map(_) | Parts::List(_) => false,
        })
    }

    fn count(&mut self, more: Size, at: YamlPosition) -> Result<(), YamlFault> {
        self.size = self.size.plus(more);
        if self.size.nodes > MAX_NODES {
            return Err(YamlFault::new(at, format!("more than {MAX_NODES} values, aliases resolved")));
        }
        if self.size.text_bytes > MAX_TEXT_BYTES {
            return Err(YamlFault::new(
                at,
                format!("more than {MAX_TEXT_BYTES} bytes of text, counted at each use of an alias"),
            ));
        }
        Ok(())
    }

    fn check_depth(&self, height: usize, at: YamlPosition) -> Result<(), YamlFault> {
        if self.open.len() + height > MAX_DEPTH {
            return Err(YamlFault::too_deep(at));
        }
        Ok(())
    }
}

/// Returns the start of the next document with content or a fault. The rest of it is not read.
fn next_document<'t>(events: impl Iterator<Item = ParsedEvent<'t>>) -> Option<YamlPosition> {
    let mut start = None;
    for event in events {
        let at = match event {
            Ok((Event::DocumentStart(..), span)) => {
                start = Some(YamlPosition::from(span));
                continue;
            }
            Ok((Event::Scalar(text, style, ..), span)) => {
                let is_plain = style == ScalarStyle::Plain;
                if Scalar::new(written(&text, style, span), is_plain).is_null() {
                    continue;
                }
                span.into()
            }
            Ok((Event::SequenceStart(..) | Event::MappingStart(..), span)) => span.into(),
            Ok(_) => continue,
            Err(error) => YamlPosition::from(Span::empty(*error.marker())),
        };
        return Some(start.unwrap_or(at));
    }
    None
}

/// The parser gives '~' for what is not written at all.
fn written(text: &str, style: ScalarStyle, span: Span) -> &str {
    if span.is_empty() && style == ScalarStyle::Plain { "" } else { text }
}

fn is_plain(style: ScalarStyle, tag: Option<&Tag>, at: YamlPosition) -> Result<bool, YamlFault> {
    let Some(tag) = tag else {
        return Ok(style == ScalarStyle::Plain);
    };
    match tag.core_suffix() {
        Some("bool" | "float" | "int" | "null") => Ok(true),
        _ if tag.suffix().ends_with("binary") => Err(YamlFault::new(at, "the tag !!binary is not supported")),
        _ => Ok(false),
    }
}

// === impl Entries ===

impl Entries {
    fn add(&mut self, node: Rc<YamlNode>) -> Result<(), YamlFault> {
        let Some(key) = self.key.take() else {
            self.key = Some(node);
            return Ok(());
        };
        if key.scalar().is_some_and(Scalar::is_merge) {
            self.merge(&node)
        } else {
            self.applied.push(MapEntry { key, value: node, merged: false });
            Ok(())
        }
    }

    fn merge(&mut self, node: &YamlNode) -> Result<(), YamlFault> {
        match &node.value {
            // the first one takes precedence, so it is applied last
            Value::List(maps) => maps.iter().rev().try_for_each(|map| self.merge_map(map)),
            Value::Map(_) | Value::Scalar(_) => self.merge_map(node),
        }
    }

    fn merge_map(&mut self, node: &YamlNode) -> Result<(), YamlFault> {
        let Value::Map(entries) = &node.value else {
            return Err(YamlFault::new(node.at, "'<<' takes a mapping, or a list of mappings"));
        };
        self.applied.extend(entries.iter().map(MapEntry::merged));
        Ok(())
    }
}

// === impl MapEntry ===

impl MapEntry {
    fn merged((key, value): &(Rc<YamlNode>, Rc<YamlNode>)) -> Self {
        Self { key: Rc::clone(key), value: Rc::clone(value), merged: true }
    }
}

/// `entries` apply one after the other. Mappings of one key are combined if `deep`.
fn finish(entries: Vec<MapEntry>, deep: bool, warnings: &mut Warnings) -> Vec<(Rc<YamlNode>, Rc<YamlNode>)> {
    let mut places = HashMap::with_capacity(entries.len());
    let mut slots: Vec<NodeSlot> = Vec::with_capacity(entries.len());
    for entry in entries {
        let place = entry.key.scalar().map(|scalar| places.entry(scalar.as_key()));
        match place {
            Some(hash_map::Entry::Occupied(place)) => {
                let slot: &mut NodeSlot = &mut slots[*place.get()];
                slot.put(entry, deep, warnings);
            }
            Some(hash_map::Entry::Vacant(place)) => {
                place.insert(slots.len());
                slots.push(entry.into());
            }
            None => slots.push(entry.into()),
        }
    }
    slots.into_iter().map(|slot| slot.finish(warnings)).collect()
}

// === impl NodeSlot ===

impl From<MapEntry> for NodeSlot {
    fn from(MapEntry { key, value, merged }: MapEntry) -> Self {
        let written = (!merged).then_some(key.at);
        Self { key, value, earlier: Vec::new(), written }
    }
}

impl NodeSlot {
    fn put(&mut self, MapEntry { key, value, merged }: MapEntry, deep: bool, warnings: &mut Warnings) {
        let is_map = |node: &YamlNode| matches!(node.value, Value::Map(_));
        let combined = deep && is_map(&self.value) && is_map(&value);
        if !merged {
            match self.written {
                Some(first) => warnings.add(key.at, || duplicate(&key, first, combined)),
                None => self.written = Some(key.at),
            }
        } else if let Some(written) = self.written {
            warnings.add(written, || overwritten(&key));
        }
        let earlier = mem::replace(&mut self.value, value);
        if combined {
            self.earlier.push(earlier);
        } else {
            self.earlier.clear();
        }
        self.key = key;
    }

    fn finish(self, warnings: &mut Warnings) -> (Rc<YamlNode>, Rc<YamlNode>) {
        if self.earlier.is_empty() {
            return (self.key, self.value);
        }
        let at = self.value.at;
        let entries = self.earlier.iter().chain([&self.value]).flat_map(|map| match &map.value {
            Value::Map(entries) => entries.as_slice(),
            Value::List(_) | Value::Scalar(_) => &[],
        });
        let combined = finish(entries.map(MapEntry::merged).collect(), false, warnings);
        (self.key, Rc::new(YamlNode::map(combined, at)))
    }
}

fn overwritten(key: &YamlNode) -> String {
    let name = key.scalar().map(Scalar::brief).unwrap_or_default();
    format!(
        "a '<<' below overwrites '{name}', or parts of it, since it comes later; write '<<' first if it is meant as a \
         default"
    )
}

fn duplicate(key: &YamlNode, first: YamlPosition, combined: bool) -> String {
    let name = key.scalar().map(Scalar::brief).unwrap_or_default();
    let YamlPosition { line, column } = first;
    let effect =
        if combined { "their entries are combined, and later ones count" } else { "the last one counts" };
    format!("duplicate key '{name}'; the first is at {line}:{column}; {effect}")
}

#[cfg(test)]
mod tests;
