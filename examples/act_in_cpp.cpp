// Runs an actor that `offpcc export` wrote, with ONNX Runtime and without Python.
//
//   c++ -std=c++17 act_in_cpp.cpp -I INCLUDE -L LIB -lonnxruntime -o act
//   ./act actor_best.onnx < observations.txt
//
// INCLUDE and LIB are the folders of ONNX Runtime's release for C++. Each line of the input is one observation, as
// numbers; an empty line begins a new episode. Each line of the output is the action.
// The actor needs one vector as observation, and no previous reward.

#include <onnxruntime_cxx_api.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Port {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

static Port make_port(const std::string& name, const Ort::TypeInfo& type) {
  const auto info = type.GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
    throw std::runtime_error(name + " is not of type float; this example reads floats alone");
  Port port{name, info.GetShape(), {}};
  port.shape[0] = 1;  // the batch: one environment
  size_t size = 1;
  for (int64_t length : port.shape) size *= static_cast<size_t>(length);
  port.values.assign(size, 0.0f);  // zeros are the state at an episode's start
  return port;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: act ACTOR.onnx < OBSERVATIONS\n";
    return 2;
  }
  try {
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "act");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    Ort::Session session(env, argv[1], options);
    Ort::AllocatorWithDefaultOptions allocator;

    std::vector<Port> inputs;  // the observation, then the state
    for (size_t i = 0; i < session.GetInputCount(); ++i)
      inputs.push_back(make_port(session.GetInputNameAllocated(i, allocator).get(), session.GetInputTypeInfo(i)));
    std::vector<std::string> outputs;  // the action, then the next state, in the same order
    for (size_t i = 0; i < session.GetOutputCount(); ++i)
      outputs.push_back(session.GetOutputNameAllocated(i, allocator).get());
    if (outputs.size() != inputs.size()) throw std::runtime_error("the actor reads more than one observation");
    if (session.GetOutputTypeInfo(0).GetTensorTypeAndShapeInfo().GetElementType() !=
        ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      throw std::runtime_error("actions are not float32 (discrete ones are int64), which this example does not read");

    std::vector<const char*> input_names, output_names;
    for (const Port& port : inputs) input_names.push_back(port.name.c_str());
    for (const std::string& name : outputs) output_names.push_back(name.c_str());
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

    std::string line;
    while (std::getline(std::cin, line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) {
        for (Port& port : inputs) port.values.assign(port.values.size(), 0.0f);
        continue;
      }
      std::istringstream numbers(line);
      for (float& value : inputs[0].values)
        if (!(numbers >> value)) throw std::runtime_error("an observation has too few numbers: " + line);
      if (!(numbers >> std::ws).eof()) throw std::runtime_error("an observation has too many numbers: " + line);

      std::vector<Ort::Value> given;
      for (Port& port : inputs)
        given.push_back(Ort::Value::CreateTensor<float>(
            memory, port.values.data(), port.values.size(), port.shape.data(), port.shape.size()));
      auto found = session.Run(Ort::RunOptions{nullptr}, input_names.data(), given.data(), given.size(),
                               output_names.data(), output_names.size());

      const size_t size = found[0].GetTensorTypeAndShapeInfo().GetElementCount();
      const float* action = found[0].GetTensorData<float>();
      for (size_t i = 0; i < size; ++i) std::cout << (i ? " " : "") << action[i];
      std::cout << std::endl;
      for (size_t i = 1; i < inputs.size(); ++i) {
        const float* next = found[i].GetTensorData<float>();
        inputs[i].values.assign(next, next + inputs[i].values.size());
      }
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
