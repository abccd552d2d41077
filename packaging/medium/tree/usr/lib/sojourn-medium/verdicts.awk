# One line for each verdict of `sojourn --json borrow scan`, and for each suspended system.
function value(text) {
    sub(/^ *"[a-z_]*": /, "", text)
    sub(/,$/, "", text)
    gsub(/^"|"$/, "", text)
    return text
}
function mib(bytes) { return sprintf("%d MiB", bytes / 1048576) }

/^ *"(path|name|place)": / { name = value($0); holds = "" }
/^ *"holds": / { holds = value($0) == "null" ? "" : " (" value($0) ")" }
/^ *"code": / { code = value($0) ", " }
/^ *"free_bytes": / { free = value($0) }
/^          "lendable_bytes": / { print name holds ": " mib(value($0)) " of " mib(free) " free can be borrowed" }
/^  "suspended": / { suspended = 1 }
/^ *"sentence": / { print (suspended ? "suspended system: " name ": " : name holds ": refused: " code) value($0) }
