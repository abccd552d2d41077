// Server-sent events by `fetch`: the browser's own `EventSource` sends no header, and so no token.

/** Calls `take` with the name and the data of every event of an answer, until it ends; fails when it breaks off. */
export async function readEvents(answer: Response, take: (name: string, data: string) => void): Promise<void> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const fields = event.split("\n").map((line) => /^(\w+): ?(.*)$/.exec(line));
      const of = (field: string) => fields.filter((found) => found?.[1] === field).map((found) => found?.[2] ?? "");
      take(of("event")[0] ?? "message", of("data").join("\n"));
    }
  }
}
