"""The trained model as a pipeline of scikit-learn."""

from learner import learner, x

import shoal

pipeline = learner().estimator(shoal.load_model("model.safetensors"))
print(pipeline.predict_proba(x[:3]))
