//! Rules that come as messages instead of files: documents without positions.

use std::rc::Rc;

use serde_json::Value as Json;

use super::{
    scalar::Scalar,
    yaml::{YamlNode, YamlPosition},
};

/// A rule file that is not a file.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its name in messages.
    pub name: String,
    pub content: DocumentContent,
}

#[derive(Clone, Debug)]
pub enum DocumentContent {
    Yaml(String),
    /// The tree that a rule file would parse to. Errors about it have no line and column.
    Tree(Json),
}

/// Frees the parts of `value` on the way: both take a kilobyte for each rule. Text never becomes a number or boolean.
pub(super) fn tree(value: Json) -> YamlNode {
    let at = YamlPosition::default();
    let plain = |text: &str| YamlNode::leaf(Scalar::new(text, true), at);
    match value {
        Json::Null => plain("null"),
        Json::Bool(flag) => plain(if flag { "true" } else { "false" }),
        Json::Number(number) => plain(&number.to_string()),
        Json::String(text) => YamlNode::leaf(Scalar::new(&text, false), at),
        Json::Array(items) => YamlNode::list(items.into_iter().map(|item| Rc::new(tree(item))).collect(), at),
        Json::Object(entries) => {
            let key = |text: &str| Rc::new(YamlNode::leaf(Scalar::new(text, false), at));
            YamlNode::map(
                entries.into_iter().map(|(name, item)| (key(&name), Rc::new(tree(item)))).collect(),
                at,
            )
        }
    }
}
