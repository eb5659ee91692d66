//! Commands that messages advise, such as `tidegate create --force`. They are copied and run, so they have to mean the volume that the message is
//! about, and not the folder that commands take when none is named. What a message says stays short where it is made; whoever knows the volume
//! completes it.

use std::path::PathBuf;

/// By which flags commands reach a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub dir: Option<PathBuf>,
    /// Which of several.
    pub volume: Option<String>,
    /// Devices that the configuration in the folder does not name.
    pub origin: Option<PathBuf>,
    pub cache: Option<PathBuf>,
}

impl Reach {
    /// The message, with these flags in all commands between backquotes that take them and have none yet.
    pub fn complete(&self, message: &str) -> String {
        const BEGIN: &str = "`tidegate ";
        let (mut completed, mut rest) = (String::new(), message);
        while let Some((before, begun)) = rest.split_once(BEGIN)
            && let Some((command, behind)) = begun.split_once('`')
        {
            completed.extend([before, BEGIN, command, &self.flags_of(command), "`"]);
            rest = behind;
        }
        completed + rest
    }

    fn flags_of(&self, command: &str) -> String {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let (dir, volume) = (("--dir", path(&self.dir)), ("--volume", self.volume.clone()));
        let devices = [("--origin", path(&self.origin)), ("--cache", path(&self.cache))];
        let flags = match command.split(' ').next() {
            _ if command.contains("--dir") || command.contains("--cache") => vec![],
            Some("create" | "attach") => [[dir, volume], devices].concat(),
            Some("up") => [&[dir], &devices[..]].concat(),
            Some("detach" | "drain" | "grow" | "mode" | "status" | "stop") => vec![dir, volume],
            _ => vec![],
        };
        flags.into_iter().filter_map(|(flag, value)| value.map(|value| format!(" {flag} {}", word(&value)))).collect()
    }
}

/// As one word of a shell.
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:,@%=".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Of which volumes one can be named.
pub fn volumes_there_are<'a>(names: impl Iterator<Item = &'a str>) -> String {
    match &names.collect::<Vec<_>>()[..] {
        [""] => "there is one, without a name".to_owned(),
        names => format!("there are {}", names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_message_get_the_flags_that_they_take() {
        let one = Reach { dir: Some("/srv/my vm".into()), ..Reach::default() };
        let of_several = Reach { dir: Some("/srv/nas".into()), volume: Some("home".to_owned()), ..Reach::default() };
        let named = Reach { dir: Some("/d".into()), origin: Some("/dev/sdb".into()), cache: Some("/dev/sdc1".into()), ..Reach::default() };
        for (reach, message, completed) in [
            (&one, "run `tidegate create --force` to", "run `tidegate create --force --dir '/srv/my vm'` to"),
            (
                &of_several,
                "`ram` or `tidegate detach`, then `tidegate up`",
                "`ram` or `tidegate detach --dir /srv/nas --volume home`, then `tidegate up --dir /srv/nas`",
            ),
            (&named, "`tidegate create --force`", "`tidegate create --force --dir /d --origin /dev/sdb --cache /dev/sdc1`"),
            (&one, "see `tidegate check --cache /c`, `tidegate --help`", "see `tidegate check --cache /c`, `tidegate --help`"),
            (&one, "a path with a `tidegate in it", "a path with a `tidegate in it"),
            (&Reach::default(), "`tidegate create`", "`tidegate create`"),
        ] {
            assert_eq!(reach.complete(message), completed);
            assert_eq!(reach.complete(completed), completed, "once");
        }
    }

    #[test]
    fn a_word_is_one_word_for_a_shell() {
        assert_eq!(["/a/b.sock", "a b", "it's", ""].map(word), ["/a/b.sock", "'a b'", r"'it'\''s'", "''"]);
    }
}
