// Holds answers to openapi.json: nothing may be in an answer that it does not tell, and what it requires
// must be there: of what a page reads that is everything, of what changes things all but an `error`.

import Ajv from "ajv/dist/2020.js";

/** Schemas of the document, by name. */
export class Document {
  constructor(document) {
    this.document = document;
    this.schemas = document.components.schemas;
    this.seen = new Set();
    const ajv = new Ajv({ strict: true, strictTypes: false, strictTuples: true, allErrors: true });
    ajv.addVocabulary(["x-events", "components"]);
    ajv.addSchema({ $id: "openapi", components: { schemas: this.schemas } });
    this.checks = Object.fromEntries(
      Object.keys(this.schemas).map((name) => [name, ajv.compile({ $ref: `openapi#/components/schemas/${name}` })]),
    );
    this.ajv = ajv;
  }

  /** Fails when `value` is not what the schema says. */
  check(name, value) {
    const check = this.checks[name];
    if (!check(value))
      throw new Error(`${name}: ${this.ajv.errorsText(check.errors)}\n${JSON.stringify(value).slice(0, 2000)}`);
    this.visit({ $ref: `#/components/schemas/${name}` }, value);
  }

  /** Notes which schemas had a value. */
  visit(schema, value) {
    if (value === null || value === undefined) return;
    if (schema.$ref) {
      const name = schema.$ref.split("/").pop();
      this.seen.add(name);
      this.visit(this.schemas[name], value);
    }
    for (const one of schema.anyOf ?? []) this.visit(one, value);
    if (Array.isArray(value)) for (const item of value) this.visit(schema.items ?? {}, item);
    else if (typeof value === "object")
      for (const [key, one] of Object.entries(schema.properties ?? {})) this.visit(one, value[key]);
  }

  /** Objects that leave room for what is not told: there is to be none. */
  loose() {
    return Object.entries(this.schemas)
      .filter(([, schema]) => schema.additionalProperties !== false)
      .map(([name]) => name);
  }

  /** Schemas that no answer had. */
  unseen() {
    return Object.keys(this.schemas).filter((name) => !this.seen.has(name));
  }
}
