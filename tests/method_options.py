"""Options of methods that change the stored structure, for tests of all methods."""

VARIANTS = {
    "a3": [
        {"qk": "q_only", "scores": "wanda"},
        {"qk": "k_only", "scores": "abs"},
        {"qk": "weights", "ov": "inputs"},
        {"scores": "random", "seed": 3, "ov": "overall", "mlp": "abs"},
        {"mlp": "taylor", "ov": "taylor"},
        {"mlp": "wanda", "ov": "wanda"},
        {"ov": "abs"},
    ],
    "flap": [{"metric": "wifn"}],
    "fused": [{"forms": "latents"}, {"forms": "narrowed"}, {"forms": "codes"}],
    "llm_surgeon": [{"update": False}],
    "llm_pruner": [{"scores": "wanda"}, {"scores": "random"}],
    "svd": [{"weights": "fisher"}, {"stored": "pivots"}],
    "svd_llm": [
        {"stored": "pivots"},
        {"outputs": "curvature"},
        {"outputs": "curvature", "damping": 0.0, "stored": "pivots"},
    ],
    "kfac_svd": [{"stored": "pivots"}],
    "compot": [{"atoms": 3, "dictionary": "least_squares", "rounds": 2}],
    "care": [
        {"whitening": "root", "shrinkage": 0.0},
        {"whitening": "identity"},
        {"joint": True},
        {"group": 1, "whitening": "root", "shrinkage": 0.0},
    ],
    "mha2mla": [
        {"pairs": "uniform", "rotary": 0.5},
        {"pairs": "high", "split": True},
        {"pairs": "low", "rotary": 1.0},
    ],
    "transmla": [
        {"fold": 4, "rotary": 0.25, "balance": 0.0},
        {"fold": 1, "rotary": 9.0},
    ],
    "latentllm": [
        {"junction": "left_identity", "preconditioner": "diag_hessian", "bias": "keep"},
        {"junction": "symmetric", "vo": "joint", "window": 0, "preconditioner": "covariance"},
        {"vo": "joint", "bias": "add", "preconditioner": "diag_l1"},
        {"vo": "attention"},
        {"vo": "attention", "bias": "keep", "junction": "left", "attention": "split_head"},
        {
            "attention": "local",
            "mlp": "local",
            "junction": "left",
            "preconditioner": "diag_l2",
            "bias": "add",
        },
        {"attention": "split_head", "preconditioner": "identity"},
        {"attention": "split_head", "junction": "left_identity"},
        {"attention": "joint_qkv", "junction": "left_identity"},
        {"attention": "joint_qkv", "junction": "right", "vo": "joint"},
        {"sparse": 0.1},
        {"bits": 4, "chunk": 8, "vo": "joint"},
    ],
}

# Options without damping for methods with a refit that is damped by default: the refit is then the
# least-squares optimum, as in the papers.
UNDAMPED = {name: {"shrinkage": False} for name in ("fused", "modegpt", "llm_surgeon")}
