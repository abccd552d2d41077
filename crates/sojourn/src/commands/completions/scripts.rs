//! A completion script that asks for names: where `sojourn __complete` knows any, these; else what the script knows.

use clap_complete::Shell;

/// Words go by blanks: bash cuts them at `:` and `@`, too, and wants to be told what follows.
const BASH: &str = r#"
_sojourn_names() {
    local line words names begun
    line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    [[ $line == *[[:blank:]] ]] && words+=("")
    mapfile -t names < <(sojourn __complete -- "${words[@]:1}" 2>/dev/null </dev/null)
    if ((${#names[@]} == 0)); then
        _sojourn "$@"
        return
    fi
    begun=${words[-1]}
    begun=${begun%"${begun##*[:@]}"}
    COMPREPLY=("${names[@]#"$begun"}")
}
complete -F _sojourn_names -o nosort -o bashdefault -o default sojourn
"#;

const ZSH: &str = r#"
_sojourn_names() {
    local -a names
    names=(${(f)"$(sojourn __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)"})
    if (( $#names )); then
        compadd -a names
    else
        _sojourn "$@"
    fi
}
compdef _sojourn_names sojourn
if [ "$funcstack[1]" = "_sojourn" ]; then
    _sojourn_names "$@"
fi
"#;

const FISH: &str = r#"
complete -c sojourn -a '(sojourn __complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null </dev/null)'
"#;

/// The script that clap makes, and behind it what asks for names; of other shells as it is.
pub(super) fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{BASH}"),
        // What it begins with when it is loaded is done at the end, by the other function.
        Shell::Zsh => {
            let cut =
                script.rfind("if [ \"$funcstack[1]\" = \"_sojourn\" ]").unwrap_or(script.len());
            format!("{}{ZSH}", &script[..cut])
        }
        Shell::Fish => format!("{script}{FISH}"),
        _ => script.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zsh_loads_the_names_in_the_place_of_what_clap_loads() {
        let mut script = Vec::new();
        let mut program = clap::Command::new("sojourn");
        clap_complete::generate(Shell::Zsh, &mut program, "sojourn", &mut script);
        let script = with_names(Shell::Zsh, &String::from_utf8(script).unwrap());
        assert_eq!(script.matches("funcstack").count(), 1, "{script}");
        assert_eq!(script.matches("compdef _sojourn sojourn").count(), 0, "{script}");
    }
}
