//! A chat template: conversations as text.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use super::{bounds, python};
use crate::corpus::{ChatMessage, Learn, Role};

/// Longest template in bytes. The longest in use have about 20 kB.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Work that one rendering may do: for itself, for each message, and for each byte of the messages. An instruction of the
/// template costs one, and so do 64 bytes of text that it handles.
const FUEL: [u64; 3] = [50_000, 500, 1];
/// Surround an answer while it is rendered. Unicode keeps these two for a program's own use.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// ChatML, for models without a template of their own.
const CHATML: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A problem of a template, or of a conversation with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError(pub(super) String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

/// A compiled chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    environment: Arc<Environment<'static>>,
    /// Spellings of special tokens, by the names that templates use: `bos_token`, `eos_token`, ...
    tokens: BTreeMap<String, String>,
    /// The template itself marks the answers (`{% generation %}`).
    marks_answers: bool,
    is_default: bool,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).field("tokens", &self.tokens).finish()
    }
}

impl ChatTemplate {
    /// Compiles a template. `tokens` are the spellings of special tokens by their names in templates.
    ///
    /// # Errors
    /// If the template is not valid Jinja, or is longer than 1 MiB.
    pub fn parse(source: &str, tokens: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        if source.len() > MAX_BYTES {
            return Err(TemplateError(format!("it has {} bytes, {MAX_BYTES} are allowed", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("Jinja's own delimiters"));
        environment.set_recursion_limit(100);
        python::add_to(&mut environment);
        bounds::add_to(&mut environment);
        let [open, close] = MARKS;
        environment.add_filter("generation", move |text: String| format!("{open}{text}{close}"));

        let (compiled, marks_answers) = with_filter_blocks(source);
        environment
            .add_template_owned("chat", bounds::with_bounded_sets(&compiled))
            .map_err(|error| of_jinja(&error))?;
        let environment = Arc::new(environment);
        let is_default = source == CHATML;
        Ok(Self { source: source.into(), environment, tokens, marks_answers, is_default })
    }

    /// Returns the template for models that have none: ChatML.
    pub fn chatml() -> Self {
        Self::parse(CHATML, BTreeMap::new()).expect("valid")
    }

    /// Returns the text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether this is the template for models that have none.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether the template itself says what an answer is.
    pub(super) fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    /// Writes a conversation as text. `add_generation_prompt`: begins an answer at the end.
    ///
    /// # Errors
    /// If the template refuses the conversation, fails, or does not come to an end.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TemplateError> {
        Ok(self.render_marked(messages, add_generation_prompt)?.0)
    }

    /// Also returns the parts that the template marks as answers, as ranges of bytes.
    fn render_marked(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        if messages.iter().any(|message| message.content.contains(MARKS)) {
            return Err(TemplateError(
                "a message contains U+FDD0 or U+FDD1, which are not characters: remove them".into(),
            ));
        }
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let context = tokens.chain([
            ("messages", messages.iter().map(of_message).collect()),
            ("add_generation_prompt", add_generation_prompt.into()),
            // As in `transformers`, which passes both even if there are none.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]);

        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let [own, per_message, per_byte] = FUEL;
        let mut environment = Environment::clone(&self.environment);
        environment.set_fuel(Some(own + per_message * messages.len() as u64 + per_byte * bytes as u64));
        bounds::begin(messages.len(), bytes);
        let template = environment.get_template("chat").expect("added above");
        let marked = template.render(Value::from_pairs(context)).map_err(|error| of_jinja(&error))?;
        unmarked(&marked)
    }

    /// Writes a conversation as text, and finds the parts that the model learns: ranges of bytes.
    ///
    /// If the template has `{% generation %}` blocks, they say what an answer is. Otherwise an answer is the text between
    /// the conversation before it, with the beginning of an answer, and the conversation up to it.
    ///
    /// # Errors
    /// As [`Self::render`], or if the text of a conversation does not begin with the text of its first messages.
    pub(super) fn render_to_learn(
        &self,
        messages: &[ChatMessage],
        learn: Learn,
    ) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let (whole, marked) = self.render_marked(messages, false)?;
        let spans = match learn {
            Learn::Everything => iter::once(0..whole.len()).collect(),
            _ if self.marks_answers && marked.is_empty() => {
                return Err(TemplateError("no {% generation %} block of the template came to be used".into()));
            }
            Learn::Answers if self.marks_answers => marked,
            Learn::LastAnswer if self.marks_answers => marked.into_iter().next_back().into_iter().collect(),
            Learn::Answers | Learn::LastAnswer => {
                let answers = (0..messages.len()).filter(|i| messages[*i].role == Role::Assistant);
                let skipped = if learn == Learn::LastAnswer { answers.clone().count().saturating_sub(1) } else { 0 };
                answers.skip(skipped).map(|i| self.answer(messages, i, &whole)).collect::<Result<_, _>>()?
            }
        };
        Ok((whole, spans))
    }

    /// Finds answer `i` in the text of the whole conversation.
    fn answer(&self, messages: &[ChatMessage], i: usize, whole: &str) -> Result<Range<usize>, TemplateError> {
        let before = self.render(&messages[..i], true)?;
        let is_last = i + 1 == messages.len();
        let through = if is_last { whole.to_owned() } else { self.render(&messages[..=i], false)? };
        if through.starts_with(&before) && whole.starts_with(&through) {
            return Ok(before.len()..through.len());
        }
        Err(TemplateError(format!(
            "message {}: the template writes the messages up to this answer differently when others follow, so the answer cannot \
             be found: set data.text.learn = \"last_answer\", or data.text.chat_template to a template with {{% generation %}} \
             blocks",
            i + 1
        )))
    }

    /// Returns the text that the template writes behind an answer, such as `<|im_end|>`; empty if there is none.
    ///
    /// # Errors
    /// If the template fails.
    pub fn end_of_turn(&self) -> Result<String, TemplateError> {
        const ANSWER: &str = "Q7";
        let messages = [ChatMessage::new(Role::User, "?"), ChatMessage::new(Role::Assistant, ANSWER)];
        let text = self.render(&messages, false)?;
        Ok(text.rfind(ANSWER).map(|at| text[at + ANSWER.len()..].trim().to_owned()).unwrap_or_default())
    }
}

fn of_message(message: &ChatMessage) -> Value {
    let own = [("role", message.role.name()), ("content", message.content.as_str())];
    let more = message.more.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    Value::from_pairs(own.into_iter().chain(more))
}

/// Replaces `{% generation %}` blocks by blocks of the filter `generation`, which treat spaces in the same way.
fn with_filter_blocks(source: &str) -> (String, bool) {
    let (mut replaced, mut found, mut rest) = (String::with_capacity(source.len()), false, source);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        replaced.push_str(before);
        rest = tag;
        // The `%` of `{%` does not end a tag too.
        let Some(end) = tag[2..].find("%}").map(|at| at + 2) else { break };
        let (tag, behind) = tag.split_at(end + 2);
        let name = tag[2..end].trim_matches(['-', '+']).trim();
        match name {
            "generation" => replaced.push_str(&tag.replacen("generation", "filter generation", 1)),
            "endgeneration" => replaced.push_str(&tag.replacen("endgeneration", "endfilter", 1)),
            _ => replaced.push_str(tag),
        }
        found |= name == "generation";
        rest = behind;
    }
    replaced.push_str(rest);
    (replaced, found)
}

/// Removes the marks around answers and returns where the answers are.
fn unmarked(text: &str) -> Result<(String, Vec<Range<usize>>), TemplateError> {
    let (mut plain, mut spans, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for piece in text.split_inclusive(MARKS) {
        let mark = piece.chars().next_back().filter(|last| MARKS.contains(last));
        plain.push_str(&piece[..piece.len() - mark.map_or(0, char::len_utf8)]);
        match (mark, open) {
            (Some(mark), None) if mark == MARKS[0] => open = Some(plain.len()),
            (Some(mark), Some(start)) if mark == MARKS[1] => {
                spans.push(start..plain.len());
                open = None;
            }
            (None, None) => {}
            _ => return Err(TemplateError("the {% generation %} blocks of the template are nested or cut".into())),
        }
    }
    Ok((plain, spans))
}

/// Says what went wrong, and in which line of the template.
fn of_jinja(error: &minijinja::Error) -> TemplateError {
    let place = error.line().map(|line| format!("line {line} of the template: ")).unwrap_or_default();
    let found = match error.kind() {
        ErrorKind::OutOfFuel => "it does not come to an end, or handles too much text".to_owned(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    TemplateError(format!("{place}{found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_filters_and_broken_tags_stay_as_they_are() {
        let (replaced, found) = with_filter_blocks("a {%- generation -%} b {% endgeneration %} {% if x %}");
        assert_eq!((&replaced[..], found), ("a {%- filter generation -%} b {% endfilter %} {% if x %}", true));
        for broken in ["{%}", "a {%} b", "a {% if", "{%", "{%%}", "{%}{% if x %}"] {
            assert_eq!(with_filter_blocks(broken), (broken.to_owned(), false));
        }
    }
}
