// The JSON Schema of plan format version 1, what from_json checks a plan against. docs/plan.schema.json is this text,
// for editors and other tools; a test keeps the two equal. Two keywords of our own serve the fault texts: "x-accepts"
// says what a value may be, "x-reserved" lists keys or values that a later version will accept.
#pragma once

namespace dtensor::detail {

inline constexpr char plan_schema[] = R"SCHEMA({
  "$schema": "http://json-schema.org/draft-07/schema#",
  "title": "dtensor parallel plan, format version 1",
  "type": "object",
  "required": ["version"],
  "additionalProperties": false,
  "x-reserved": ["precision", "pipeline", "context", "expert", "activation_checkpoint", "checkpoint"],
  "properties": {
    "$schema": {"type": "string", "description": "For editors; not read."},
    "version": {"const": 1},
    "mesh": {
      "description": "Optional: a program may also pass a mesh, which must then agree by name and size.",
      "type": "object",
      "required": ["names", "shape"],
      "additionalProperties": false,
      "properties": {
        "names": {
          "type": "array", "minItems": 1, "uniqueItems": true,
          "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "x-accepts": "a name of letters, digits and _"},
          "x-accepts": "one or more distinct names, such as [\"dp\", \"tp\"]"
        },
        "shape": {
          "type": "array", "minItems": 1,
          "items": {
            "type": "integer", "minimum": -1, "maximum": 2147483647, "not": {"const": 0},
            "x-accepts": "a number of ranks, 1 or more, or -1 for what is left of the world"
          },
          "x-accepts": "one size per name, such as [2, -1]"
        }
      }
    },
    "tensor_parallel": {
      "type": "object",
      "required": ["rules"],
      "additionalProperties": false,
      "properties": {
        "dim": {
          "type": ["string", "array"], "default": "tp", "minItems": 1, "uniqueItems": true,
          "items": {"type": "string", "x-accepts": "the name of a mesh dimension"},
          "x-accepts": "the name of a mesh dimension, or a list of distinct ones"
        },
        "rules": {
          "type": "array", "items": {"$ref": "#/definitions/rule"},
          "x-accepts": "a list of rules, such as [{\"match\": \"blocks.*.mlp.w1\", \"style\": \"colwise\"}]"
        },
        "uncovered": {
          "description": "A Linear that no rule names while a rule cuts another.",
          "enum": ["error", "replicate"], "default": "error"
        }
      }
    },
    "data_parallel": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
        "dim": {"type": "string", "default": "dp", "x-accepts": "the name of a mesh dimension"},
        "mode": {"enum": ["replicate"], "default": "replicate", "x-reserved": ["fully_shard"]},
        "batch_dim": {
          "type": "integer", "minimum": 0, "maximum": 63, "default": 0,
          "x-accepts": "the batch dimension of the inputs, 0 or more"
        },
        "bucket_mb": {
          "description": "Gradients are reduced together up to this many megabytes; auto: from latency and bandwidth, measured when the plan is applied.",
          "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "auto"}], "default": 25,
          "x-accepts": "a positive number of megabytes or \"auto\""
        },
        "reduce_dtype": {
          "description": "The dtype in which gradients are reduced; empty: their own.",
          "enum": ["", "float32", "float64", "bfloat16", "float16"], "default": ""
        }
      }
    },
    "policy": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
        "fallback": {
          "description": "An operator without a rule, run on replicated inputs.",
          "enum": ["allow", "warn", "error"], "default": "warn"
        },
        "implicit_moves": {
          "description": "An operator that must move an input.",
          "enum": ["allow", "error"], "default": "allow"
        },
        "plain_tensors": {
          "description": "A plain tensor that meets a DTensor.",
          "enum": ["error", "replicate_checked"], "default": "error"
        }
      }
    }
  },
  "definitions": {
    "rule": {
      "type": "object",
      "required": ["match", "style"],
      "additionalProperties": false,
      "x-reserved": ["regather"],
      "properties": {
        "match": {
          "description": "Module path: * is one path component, ** any number of them, {a,b} are alternatives.",
          "type": "string", "minLength": 1,
          "x-accepts": "a module path pattern, such as \"blocks.*.attn.{wq,wk,wv}\""
        },
        "style": {
          "enum": [
            "colwise", "rowwise", "sequence_parallel", "replicate",
            "prepare_input", "prepare_output", "prepare_input_output",
            "packed_colwise", "packed_rowwise", "embedding_rowwise", "embedding_colwise",
            "prepare_module_input", "prepare_module_output", "prepare_module_input_output",
            "colwise_rep", "colwise_gather_output", "rowwise_rep", "rowwise_split_input",
            "replicated_with_grad_allreduce"
          ],
          "x-reserved": [
            "local_colwise", "local_rowwise", "local_packed_rowwise", "local", "gather", "ep_router", "ep_rowwise",
            "grouped_gemm", "moe_tp_experts", "mla_kv_a_proj"
          ]
        },
        "override": {
          "description": "This rule wins over the others that match a module.",
          "type": "boolean", "default": false
        },
        "input": {"$ref": "#/definitions/layout"},
        "output": {"$ref": "#/definitions/layout"},
        "desired_input": {"$ref": "#/definitions/layout"},
        "desired_output": {"$ref": "#/definitions/layout"},
        "sequence_dim": {
          "type": "integer", "minimum": -64, "maximum": 63, "default": 1,
          "x-accepts": "the sequence dimension of the activations"
        },
        "parts": {
          "description": "Sizes of the packed parts, in order; two equal ones if not stated.",
          "type": "array", "minItems": 1,
          "items": {"type": "integer", "minimum": 1, "x-accepts": "the size of a packed part, 1 or more"},
          "x-accepts": "the sizes of the packed parts, such as [4096, 1024, 1024]"
        },
        "heads": {
          "description": "Attention heads in the cut dimension (packed: in the first part).",
          "type": "integer", "minimum": 1, "x-accepts": "a number of attention heads, 1 or more"
        },
        "kv_heads": {
          "description": "Key-value heads in the cut dimension (packed: in each part after the first).",
          "type": "integer", "minimum": 1, "x-accepts": "a number of key-value heads, 1 or more"
        },
        "share_kv_heads": {
          "description": "Where ranks do not divide the key-value heads, every rank holds all of them.",
          "type": "boolean", "default": false
        }
      }
    },
    "layout": {
      "description": "Placements on the tensor-parallel mesh dimension: one entry, with PyTorch's names.",
      "type": "array", "minItems": 1, "maxItems": 1,
      "items": {
        "type": "string",
        "pattern": "^(Replicate|Shard\\(-?[0-9]{1,2}\\)|Partial(\\((sum|avg|product|max|min)\\))?|Interleaved\\(-?[0-9]{1,2}, \\[[0-9]{1,18}(, [0-9]{1,18})*\\]\\))$",
        "x-accepts": "\"Replicate\", \"Shard(DIM)\", \"Partial(sum)\" or \"Interleaved(DIM, [SIZE, SIZE])\""
      },
      "x-accepts": "a list of one placement, such as [\"Shard(1)\"] or [\"Replicate\"]"
    }
  }
}
)SCHEMA";

}  // namespace dtensor::detail
