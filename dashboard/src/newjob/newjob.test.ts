import { describe, expect, it } from "vitest";
import { runCommand } from "./runCommand";
import { errorsOfTable, errorsAt } from "./fieldErrors";
import { kindOf, describeField, describeRange, variantsOf, withoutDefaults, type Schema } from "./schema";
import { chooseClass, cloneValues, parseDraft, nameOf, nextName, initialValues, serializeDraft, usualName } from "./initialValues";
import { writeToml } from "./toml";
import { getValue, parsePairs, formatPairs, setValue, parseInput, parseWords } from "./values";

const SCHEMA: Schema = {
  properties: {
    name: { type: "string" },
    rounds: { type: "integer", default: 0, minimum: 0 },
    algorithm: {
      oneOf: [{ $ref: "#/$defs/algorithm-fedavg" }, { $ref: "#/$defs/algorithm-fedsgd" }],
      default: { name: "fedavg" },
    },
    schedule: { oneOf: [{ $ref: "#/$defs/schedule-rounds" }], default: { name: "rounds" } },
    filters: { type: "array", items: { oneOf: [{ $ref: "#/$defs/filter-quantize" }] } },
    limits: { $ref: "#/$defs/UpdateLimits" },
    held_out: { anyOf: [{ $ref: "#/$defs/HeldOutEvaluation" }, { type: "null" }], default: null },
    options: { type: "object", additionalProperties: true },
  },
  $defs: {
    UpdateLimits: { type: "object", properties: { norm: { type: "number", default: 0, exclusiveMinimum: 0, maximum: 5 } } },
    HeldOutEvaluation: { type: "object", properties: { learner: { type: "string" } } },
    "algorithm-fedavg": { description: "a mean", properties: { name: { const: "fedavg" }, lr: { type: "number" } } },
    "algorithm-fedsgd": { properties: { name: { const: "fedsgd" } } },
    "schedule-rounds": { properties: { name: { const: "rounds" } } },
    "filter-quantize": { properties: { name: { const: "quantize" }, bits: { enum: [8, 4], default: 8 } } },
  },
};

const field = (name: string) => SCHEMA.properties![name]!;

describe("the schema", () => {
  it("says what each field is", () => {
    const kinds = Object.keys(SCHEMA.properties!).map((name) => kindOf(SCHEMA, field(name)));
    expect(kinds).toEqual(["text", "number", "variants", "variants", "list", "table", "optional", "free"]);
  });

  it("says what may be chosen, and its fields", () => {
    expect(variantsOf(SCHEMA, field("algorithm")).map(([name, { properties }]) => [name, Object.keys(properties!)])).toEqual([
      ["fedavg", ["lr"]],
      ["fedsgd", []],
    ]);
  });

  it("takes several words on one line", () => {
    expect(kindOf(SCHEMA, { type: "array", items: { type: "string" }, default: [] })).toBe("words");
    expect(parseWords(" phone, eu,, ")).toEqual(["phone", "eu"]);
    expect(parseWords(" , ")).toBeUndefined();
  });

  it("says what numbers a field takes", () => {
    expect(describeRange({ exclusiveMinimum: 0, maximum: 5 })).toBe("above 0 to 5");
    expect(describeRange({ minimum: 0, exclusiveMaximum: 1 })).toBe("from 0 below 1");
    expect(describeRange({})).toBe("");
    expect(describeRange({ minimum: 0, exclusiveMaximum: 2 ** 63 })).toBe("from 0");
  });

  it("describes a field in one sentence", () => {
    expect(describeField({ description: "Local learning rate.", minimum: 0 })).toBe("Local learning rate; from 0");
    expect(describeField({ description: "Nodes to ask." })).toBe("Nodes to ask.");
    expect(describeField({ minimum: 1 })).toBe("from 1");
  });

  it("leaves out of a job what stands for itself", () => {
    const spec = {
      name: "a",
      rounds: 0,
      algorithm: { name: "fedavg", lr: 0.5 },
      filters: [],
      limits: { norm: 0 },
      held_out: null,
      options: {},
    };
    expect(withoutDefaults(SCHEMA, SCHEMA, spec)).toEqual({ name: "a", algorithm: { name: "fedavg", lr: 0.5 } });
    expect(withoutDefaults(SCHEMA, SCHEMA, { limits: { norm: 2 } })).toEqual({ limits: { norm: 2 } });
  });
});

describe("values", () => {
  it("are put in and taken out, with tables that are empty then", () => {
    const values = setValue({}, ["gossip", "mixing", "name"], "pairwise");
    expect(values).toEqual({ gossip: { mixing: { name: "pairwise" } } });
    expect(setValue(values, ["gossip", "mixing", "name"], undefined)).toEqual({});
    const two = setValue(setValue({}, ["filters", 0], { name: "a" }), ["filters", 1], { name: "b" });
    expect(setValue(two, ["filters", 0], undefined)).toEqual({ filters: [{ name: "b" }] });
    const stages = setValue(setValue({}, ["stages", 0, "rounds"], 3), ["stages", 1], {});
    expect(setValue(stages, ["stages", 0, "rounds"], undefined)).toEqual({ stages: [{}, {}] });
    expect(getValue(two, ["filters", 1, "name"])).toBe("b");
    expect(getValue({}, ["constructor"])).toBeUndefined();
  });

  it("are numbers where they can be", () => {
    expect(parseInput("0.5", true)).toBe(0.5);
    expect(parseInput("0,5", true)).toBe("0,5");
    expect(parseInput("1e999", true)).toBe("1e999");
    expect(parseInput("5", false)).toBe("5");
    expect(parseInput("", true)).toBeUndefined();
  });

  it("have keys of one's own, a line each", () => {
    const values = { parts: 4, split: "by-label", exact: true, text: "4" };
    expect(parsePairs(formatPairs(values))).toEqual(values);
    expect(parsePairs("\n")).toBeUndefined();
  });
});

describe("the file", () => {
  it("has own keys first, then tables", () => {
    const values = {
      algorithm: { name: "fedavg", lr: 1e-8 },
      name: "a",
      filters: [{ name: "quantize" }, { name: "quantize", bits: 4 }],
      gossip: { mixing: { name: "pairwise" } },
    };
    expect(writeToml(values)).toBe(
      'name = "a"\n\n[algorithm]\nname = "fedavg"\nlr = 1e-8\n\n[[filters]]\nname = "quantize"\n\n[[filters]]\nname = "quantize"\nbits = 4\n\n[gossip.mixing]\nname = "pairwise"\n',
    );
  });

  it("quotes whatever would be something else", () => {
    expect(writeToml({ 'a"\n[x]': "b\n]\u007f" })).toBe('"a\\"\\n[x]" = "b\\n]\\u007F"\n');
  });

  it("goes into a command whole, whatever it says", () => {
    const command = runCommand({ name: "a; rm -rf ~" }, 'x = """\nJOB\nrm -rf ~\n"""\n', "http://here:8080");
    expect(command).toBe(
      `cat > job.toml <<'JOB_'\nx = """\nJOB\nrm -rf ~\n"""\nJOB_\nshoal run job.toml --url http://here:8080`,
    );
    expect(runCommand({ name: "digits" }, 'name = "digits"\n', "u")).toContain("shoal run digits.toml");
  });
});

describe("the schedule", () => {
  const own = (name: string, schedule: string): Schema => ({ properties: { name: { const: name } }, "x-schedule": schedule });
  const root: Schema = {
    properties: {
      algorithm: { oneOf: [own("fedavg", "rounds"), own("fedadam", "rounds"), own("dynamic", "divergence")], default: { name: "fedavg" } },
      schedule: { default: { name: "rounds" } },
    },
  };
  const choose = (values: Record<string, unknown>, name: string) => chooseClass(root, values, ["algorithm"], name);

  it("follows the algorithm while it is the usual one", () => {
    const first = { algorithm: { name: "fedavg", lr: 1 }, schedule: { name: "rounds", cohort: 2 } };
    const second = { algorithm: { name: "dynamic" }, schedule: { name: "divergence" } };
    expect(choose(first, "dynamic")).toEqual(second);
    expect(choose(second, "fedavg")).toEqual({ algorithm: { name: "fedavg" }, schedule: { name: "rounds" } });
    expect(choose({}, "dynamic")).toEqual({ algorithm: { name: "dynamic" } });
  });

  it("stays if it was chosen, or fits", () => {
    const buffer = { algorithm: { name: "fedavg" }, schedule: { name: "buffer" } };
    expect(choose(buffer, "dynamic")).toEqual({ ...buffer, algorithm: { name: "dynamic" } });
    const cohort = { algorithm: { name: "fedavg" }, schedule: { name: "rounds", cohort: 2 } };
    expect(choose(cohort, "fedadam")).toEqual({ ...cohort, algorithm: { name: "fedadam" } });
    expect(chooseClass(root, cohort, ["schedule"], "")).toEqual({ algorithm: { name: "fedavg" } });
  });

  it("is shown as the algorithm's where it has no name", () => {
    const shown = (values: Record<string, unknown>, place = ["schedule"]) =>
      usualName(root, root.properties![place[0]!]!, values, place);
    expect(shown({ algorithm: "dynamic", schedule: { delta: 1 } })).toBe("divergence");
    expect(shown({})).toBe("rounds");
    expect(shown({ algorithm: { name: "unknown" } })).toBe("rounds");
    expect(shown({ algorithm: "dynamic" }, ["algorithm"])).toBe("fedavg");
    expect([nameOf("dynamic"), nameOf({ name: "fda" }), nameOf({}), nameOf(7)]).toEqual(["dynamic", "fda", undefined, undefined]);
  });
});

describe("the beginning", () => {
  it("is the smallest job", () => {
    expect(initialValues(SCHEMA)).toEqual({ name: "", algorithm: { name: "fedavg" }, schedule: { name: "rounds" } });
  });

  it("is another job under a free name", () => {
    const protocol = { algorithm: { name: "fedavg" }, schedule: { name: "rounds" } };
    const spec = { name: "a-2", rounds: 3, limits: { norm: 0 }, ...protocol };
    expect(cloneValues(SCHEMA, spec, new Set(["a", "a-2", "a-3"]))).toEqual({ name: "a-4", rounds: 3, ...protocol });
    expect(nextName("x".repeat(63), new Set())).toHaveLength(63);
  });

  it("survives an address, unless it is too long for one", () => {
    expect(parseDraft(serializeDraft({ name: "ä&=#" }))).toEqual({ name: "ä&=#" });
    expect(serializeDraft({ name: "x".repeat(7000) })).toBe("");
    expect([parseDraft("["), parseDraft("[1]"), parseDraft("")]).toEqual([null, null, null]);
  });
});

describe("mistakes", () => {
  const mistakes = [
    { place: ["algorithm", "lr"], text: "lr", hint: "" },
    { place: ["algorithm", "epoch"], text: "epoch", hint: "" },
    { place: ["gossip", "failover_quorum", "int"], text: "quorum", hint: "" },
    { place: [], text: "all", hint: "" },
  ];

  it("stand at their field, or at the table that shows no such field", () => {
    expect(errorsAt(mistakes, ["gossip", "failover_quorum"]).map(({ text }) => text)).toEqual(["quorum"]);
    expect(errorsOfTable(mistakes, ["algorithm"], ["name", "lr"]).map(({ text }) => text)).toEqual(["epoch"]);
    expect(errorsOfTable(mistakes, [], ["algorithm", "gossip"]).map(({ text }) => text)).toEqual(["all"]);
  });
});
