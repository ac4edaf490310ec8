//! Parses a YAML document into a tree with positions. The only file that uses the YAML crate.
//!
//! The tree is built from the parser's events and not through serde, for three reasons: a value keeps its spelling
//! (`007` has three characters), every duplicate key is reported, and an alias is shared instead of copied, so that an
//! alias bomb is rejected before it takes memory.

use std::{collections::HashMap, rc::Rc};

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::scalar::Scalar;

/// The maximum nesting of lists and mappings, aliases resolved. Bounded because the walk of the tree is recursive; each
/// level of rules takes two.
pub(super) const MAX_DEPTH: usize = 128;

/// The maximum number of nodes in a document, about 150,000 rules. Each use of an alias counts all of its nodes.
pub(super) const MAX_NODES: usize = 2_000_000;

/// The most faults of a document that are described.
const MAX_FAULTS: usize = 100;

/// A place in a document: line and column from 1, in characters. The default, 0, stands for the whole document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// A value and its place. Shared by reference count, since an alias is the node of its anchor.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: Value,
    pub(super) at: Position,
    /// The number of nodes, including itself and all below it.
    size: usize,
    /// The number of levels, including its own.
    height: usize,
}

/// The content of a node.
#[derive(Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<YamlNode>>),
    /// In the order of writing, merged entries last. Keys are unique.
    Map(Vec<(Rc<YamlNode>, Rc<YamlNode>)>),
}

/// An error in a document.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Position,
    pub(super) message: String,
}

/// A document, as far as it was parsed.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// None for a document without content, and after a fault that ended the parsing.
    pub(super) root: Option<Rc<YamlNode>>,
    /// The faults.
    pub(super) faults: Faults,
}

/// Errors in a document, in the order of reading: the first ones, and the place and number of the others.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) first: Vec<Fault>,
    pub(super) more: Option<(Position, usize)>,
}

/// Parses `text`, which must hold one document.
pub(super) fn parse(text: &str) -> Document {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let read =
            event.map_err(|error| Fault::from(&error)).and_then(|(event, span)| builder.add(event, span));
        if let Err(fault) = read {
            builder.faults.add(fault.at, || fault.message);
            return Document { root: None, faults: builder.faults };
        }
    }
    Document { root: builder.root, faults: builder.faults }
}

// === impl Position ===

impl From<Span> for Position {
    fn from(span: Span) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: count(span.start.line()), column: count(span.start.col() + 1) }
    }
}

// === impl Fault ===

impl Fault {
    fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    fn too_deep(at: Position) -> Self {
        Self::new(at, format!("nested deeper than {MAX_DEPTH} levels"))
    }
}

impl From<&ScanError> for Fault {
    fn from(error: &ScanError) -> Self {
        let at = Position::from(Span::empty(*error.marker()));
        match error.kind() {
            // the parser reads ahead, so its own limit of nested brackets applies first
            ErrorKind::RecursionLimitExceeded => Self::too_deep(at),
            _ if ["unknown anchor", "an anchor or alias"].iter().any(|text| error.info().contains(text)) => {
                Self::new(
                    at,
                    format!(
                        "{}: a value that begins with '*' is an alias of YAML, and one that begins with '&' an anchor; write it in \
                     quotes, such as '*.pdf'",
                        error.info()
                    ),
                )
            }
            _ => Self::new(at, error.info()),
        }
    }
}

// === impl Faults ===

impl Faults {
    fn add(&mut self, at: Position, message: impl FnOnce() -> String) {
        if self.first.len() < MAX_FAULTS {
            self.first.push(Fault { at, message: message() });
        } else {
            self.more.get_or_insert((at, 0)).1 += 1;
        }
    }
}

// === impl YamlNode ===

impl YamlNode {
    /// Names its type, for messages.
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

    pub(super) fn leaf(scalar: Scalar, at: Position) -> Self {
        Self { value: Value::Scalar(scalar), at, size: 1, height: 1 }
    }

    pub(super) fn list(items: Vec<Rc<Self>>, at: Position) -> Self {
        let (size, height) = measure(&items);
        Self { value: Value::List(items), at, size, height }
    }

    pub(super) fn map(entries: Vec<(Rc<Self>, Rc<Self>)>, at: Position) -> Self {
        let (size, height) = measure(entries.iter().flat_map(|(key, value)| [key, value]));
        Self { value: Value::Map(entries), at, size, height }
    }
}

/// Returns the size and height of a node with these `parts`.
fn measure<'a>(parts: impl IntoIterator<Item = &'a Rc<YamlNode>>) -> (usize, usize) {
    let (size, height) = parts
        .into_iter()
        .fold((0_usize, 0), |(size, height), node| (size.saturating_add(node.size), height.max(node.height)));
    (size.saturating_add(1), height + 1)
}

/// Builds the tree from events. Keeps its own stack, so that nesting does not use the thread's.
#[derive(Default)]
struct Builder {
    root: Option<Rc<YamlNode>>,
    open: Vec<Open>,
    /// By the parser's anchor number, which is unique in a document.
    anchors: HashMap<usize, Rc<YamlNode>>,
    nodes: usize,
    faults: Faults,
}

/// A list or mapping that is not closed yet.
struct Open {
    at: Position,
    anchor: usize,
    parts: Parts,
}

enum Parts {
    List(Vec<Rc<YamlNode>>),
    Map(Entries),
}

#[derive(Default)]
struct Entries {
    written: Vec<(Rc<YamlNode>, Rc<YamlNode>)>,
    /// The entries merged by `<<`, in the order of precedence.
    merged: Vec<(Rc<YamlNode>, Rc<YamlNode>)>,
    /// The key that waits for its value.
    key: Option<Rc<YamlNode>>,
}

// === impl Builder ===

impl Builder {
    fn add(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let at = Position::from(span);
        match event {
            Event::DocumentStart(..) if self.root.as_ref().is_some_and(|root| root.is_null()) => {
                self.root = None;
            }
            Event::Scalar(text, style, anchor, tag) => {
                // the parser gives '~' for what is not written at all
                let written = if span.is_empty() && style == ScalarStyle::Plain { "" } else { &*text };
                let scalar = Scalar::new(written, is_plain(style, tag.as_deref(), at)?);
                self.node(Rc::new(YamlNode::leaf(scalar, at)), anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, Parts::List(Vec::new()))?,
            Event::MappingStart(_, anchor, _) => self.open(at, anchor, Parts::Map(Entries::default()))?,
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
                    return Err(Fault::new(at, "an anchor's value must not contain itself"));
                };
                self.count(node.size, at)?;
                self.put(node, at)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at: Position, anchor: usize, parts: Parts) -> Result<(), Fault> {
        self.open.push(Open { at, anchor, parts });
        self.check_depth(0, at)
    }

    fn close(&mut self) -> Result<(), Fault> {
        let Some(Open { at, anchor, parts }) = self.open.pop() else {
            return Ok(());
        };
        let node = match parts {
            Parts::List(items) => YamlNode::list(items, at),
            Parts::Map(entries) => {
                let size: usize = entries.merged.iter().map(|(key, value)| key.size + value.size).sum();
                self.count(size, at)?;
                YamlNode::map(entries.finish(&mut self.faults), at)
            }
        };
        self.node(Rc::new(node), anchor)
    }

    /// Adds a new node.
    fn node(&mut self, node: Rc<YamlNode>, anchor: usize) -> Result<(), Fault> {
        self.count(1, node.at)?;
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let at = node.at;
        self.put(node, at)
    }

    /// Adds a node to the open list or mapping, or as the root. `at` is the place of the node or of its alias.
    fn put(&mut self, node: Rc<YamlNode>, at: Position) -> Result<(), Fault> {
        self.check_depth(node.height, at)?;
        match self.open.last_mut().map(|open| &mut open.parts) {
            Some(Parts::List(items)) => items.push(node),
            Some(Parts::Map(entries)) => entries.add(node)?,
            None if self.root.is_none() => self.root = Some(node),
            None if node.is_null() => {}
            None => {
                return Err(Fault::new(
                    at,
                    "a file holds one document; move the content after '---' to a file of its own",
                ));
            }
        }
        Ok(())
    }

    fn count(&mut self, more: usize, at: Position) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > MAX_NODES {
            return Err(Fault::new(at, format!("more than {MAX_NODES} values, aliases resolved")));
        }
        Ok(())
    }

    fn check_depth(&self, height: usize, at: Position) -> Result<(), Fault> {
        if self.open.len() + height > MAX_DEPTH {
            return Err(Fault::too_deep(at));
        }
        Ok(())
    }
}

/// Returns whether a scalar's spelling decides its type. Otherwise it is text.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Result<bool, Fault> {
    let Some(tag) = tag else {
        return Ok(style == ScalarStyle::Plain);
    };
    match tag.core_suffix() {
        Some("bool" | "float" | "int" | "null") => Ok(true),
        _ if tag.suffix().ends_with("binary") => Err(Fault::new(at, "the tag !!binary is not supported")),
        _ => Ok(false),
    }
}

// === impl Entries ===

impl Entries {
    fn add(&mut self, node: Rc<YamlNode>) -> Result<(), Fault> {
        let Some(key) = self.key.take() else {
            self.key = Some(node);
            return Ok(());
        };
        if key.scalar().is_some_and(Scalar::is_merge) {
            self.merge(&node)
        } else {
            self.written.push((key, node));
            Ok(())
        }
    }

    fn merge(&mut self, node: &YamlNode) -> Result<(), Fault> {
        match &node.value {
            Value::Map(entries) => self.merged.extend(entries.iter().cloned()),
            Value::List(maps) => {
                for map in maps {
                    match &map.value {
                        Value::Map(entries) => self.merged.extend(entries.iter().cloned()),
                        _ => return Err(Fault::new(map.at, "'<<' takes mappings, or a list of mappings")),
                    }
                }
            }
            Value::Scalar(_) => {
                return Err(Fault::new(node.at, "'<<' takes a mapping, or a list of mappings"));
            }
        }
        Ok(())
    }

    /// Returns the entries. Written entries take precedence over merged ones, and earlier merges over later ones.
    fn finish(self, faults: &mut Faults) -> Vec<(Rc<YamlNode>, Rc<YamlNode>)> {
        let mut seen: HashMap<Scalar, Position> = HashMap::with_capacity(self.written.len());
        let mut entries = Vec::with_capacity(self.written.len());
        for (key, value) in self.written {
            if let Some(scalar) = key.scalar()
                && let Some(first) = seen.insert(scalar.clone(), key.at)
            {
                let Position { line, column } = first;
                faults.add(key.at, || {
                    format!("duplicate key '{}'; the first is at {line}:{column}", scalar.brief())
                });
                continue;
            }
            entries.push((key, value));
        }
        for (key, value) in self.merged {
            let new = key.scalar().is_none_or(|scalar| seen.insert(scalar.clone(), key.at).is_none());
            if new {
                entries.push((key, value));
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests;
