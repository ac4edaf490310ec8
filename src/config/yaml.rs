//! A YAML document as a tree that knows where everything is. The only file that knows the YAML crate.
//!
//! The tree is made from the parser's events rather than through serde: only so is a value's spelling kept (`007` is
//! a value of three characters), every duplicate key told, and an alias shared instead of copied, so that a bomb of
//! aliases costs nothing before it is refused.

use std::{collections::HashMap, rc::Rc};

use serde_yaml::granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::scalar::Scalar;

/// Levels of lists and mappings within one another, aliases resolved. Two are needed for a level of rules, and what
/// walks the tree is recursive.
pub(super) const MAX_DEPTH: usize = 128;

/// Nodes of a document, those that an alias stands for counted each time: some 150,000 rules.
pub(super) const MAX_NODES: usize = 2_000_000;

/// A place in a document: line and column counted from 1, in characters. The default, 0, is the document as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// A value and its place. Behind a shared pointer, for an alias is the node that it stands for.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: Value,
    pub(super) at: Position,
    /// How many nodes it is, with all below it.
    size: usize,
    /// How many levels it is.
    height: usize,
}

/// What a node is.
#[derive(Debug)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<YamlNode>>),
    /// In the order of writing, what was merged in last. No two keys are alike.
    Map(Vec<(Rc<YamlNode>, Rc<YamlNode>)>),
}

/// Something that is wrong with a document.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Position,
    pub(super) message: String,
}

/// A document, as far as it could be read.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// None for a document without content, and after a fault that ended the reading.
    pub(super) root: Option<Rc<YamlNode>>,
    /// By place.
    pub(super) faults: Vec<Fault>,
}

/// Reads the one document of `text`.
pub(super) fn parse(text: &str) -> Document {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let read =
            event.map_err(|error| Fault::from(&error)).and_then(|(event, span)| builder.add(event, span));
        if let Err(fault) = read {
            builder.faults.push(fault);
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
            // the parser reads ahead, and so comes to its own limit of nested brackets first
            ErrorKind::RecursionLimitExceeded => Self::too_deep(at),
            _ => Self::new(at, error.info()),
        }
    }
}

// === impl YamlNode ===

impl YamlNode {
    /// What people call it.
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

    fn leaf(scalar: Scalar, at: Position) -> Self {
        Self { value: Value::Scalar(scalar), at, size: 1, height: 1 }
    }

    fn list(items: Vec<Rc<Self>>, at: Position) -> Self {
        let (size, height) = measure(&items);
        Self { value: Value::List(items), at, size, height }
    }

    fn map(entries: Vec<(Rc<Self>, Rc<Self>)>, at: Position) -> Self {
        let (size, height) = measure(entries.iter().flat_map(|(key, value)| [key, value]));
        Self { value: Value::Map(entries), at, size, height }
    }
}

/// The size and height of what has these `parts`.
fn measure<'a>(parts: impl IntoIterator<Item = &'a Rc<YamlNode>>) -> (usize, usize) {
    let (size, height) = parts
        .into_iter()
        .fold((0_usize, 0), |(size, height), node| (size.saturating_add(node.size), height.max(node.height)));
    (size.saturating_add(1), height + 1)
}

/// Puts events together. It keeps its own stack, so that nesting costs no stack of the process.
#[derive(Default)]
struct Builder {
    root: Option<Rc<YamlNode>>,
    open: Vec<Open>,
    /// By the parser's number. Numbers are not used twice.
    anchors: HashMap<usize, Rc<YamlNode>>,
    nodes: usize,
    faults: Vec<Fault>,
}

/// A list or mapping whose end has not come yet.
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
    /// What `<<` gave, in the order of precedence.
    merged: Vec<(Rc<YamlNode>, Rc<YamlNode>)>,
    /// The key whose value has not come yet.
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
                let scalar = Scalar::new(&text, is_plain(style, tag.as_deref(), at)?);
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

    /// Adds a node that was just made.
    fn node(&mut self, node: Rc<YamlNode>, anchor: usize) -> Result<(), Fault> {
        self.count(1, node.at)?;
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let at = node.at;
        self.put(node, at)
    }

    /// Adds a node, which is written or referred to at `at`, where it belongs.
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
                    "only the first document of a file is read: move what follows '---' to a file of its own",
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

/// Whether a scalar's text says what type it is. Otherwise it is text, whatever it looks like.
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

    /// The entries: what is written goes before what is merged, and what is merged first before the rest.
    fn finish(self, faults: &mut Vec<Fault>) -> Vec<(Rc<YamlNode>, Rc<YamlNode>)> {
        let mut seen: HashMap<Scalar, Position> = HashMap::with_capacity(self.written.len());
        let mut entries = Vec::with_capacity(self.written.len());
        for (key, value) in self.written {
            if let Some(scalar) = key.scalar()
                && let Some(first) = seen.insert(scalar.clone(), key.at)
            {
                let Position { line, column } = first;
                faults.push(Fault::new(
                    key.at,
                    format!("the key '{}' is already there, at {line}:{column}", scalar.brief()),
                ));
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
