// Stands in for ONNX Runtime's header, which no Python package has: what examples/act_in_cpp.cpp uses of it, with the
// signatures of release 1.21, and one actor: action = 2 * observation + memory, next memory = memory + observation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 };
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

namespace Ort {

struct TensorTypeAndShapeInfo {
  std::vector<int64_t> shape;
  ONNXTensorElementDataType GetElementType() const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  std::vector<int64_t> GetShape() const { return shape; }
  size_t GetElementCount() const {
    size_t count = 1;
    for (int64_t length : shape) count *= static_cast<size_t>(length);
    return count;
  }
};

struct TypeInfo {
  std::vector<int64_t> shape;
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const { return {shape}; }
};

struct Env {
  Env(OrtLoggingLevel, const char*) {}
};

struct SessionOptions {
  SessionOptions& SetIntraOpNumThreads(int) { return *this; }
};

struct RunOptions {
  explicit RunOptions(std::nullptr_t) {}
};

struct AllocatorWithDefaultOptions {};

struct AllocatedStringPtr {
  std::string text;
  const char* get() const { return text.c_str(); }
};

struct MemoryInfo {
  static MemoryInfo CreateCpu(OrtAllocatorType, OrtMemType) { return {}; }
};

struct Value {
  std::vector<float> values;
  std::vector<int64_t> shape;
  Value(std::vector<float> values, std::vector<int64_t> shape) : values(values), shape(shape) {}
  Value(const Value&) = delete;  // as the real one
  Value(Value&&) = default;

  template <typename T>
  static Value CreateTensor(const MemoryInfo&, T* data, size_t count, const int64_t* shape, size_t rank) {
    return {{data, data + count}, {shape, shape + rank}};
  }
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const { return {shape}; }
  template <typename T>
  const T* GetTensorData() const {
    return values.data();
  }
};

struct Session {
  const std::vector<std::string> inputs{"observation", "memory_0"}, outputs{"action", "next_memory_0"};
  Session(const Env&, const char*, const SessionOptions&) {}
  size_t GetInputCount() const { return 2; }
  size_t GetOutputCount() const { return 2; }
  TypeInfo GetInputTypeInfo(size_t) const { return {{-1, 2}}; }
  TypeInfo GetOutputTypeInfo(size_t) const { return {{-1, 2}}; }
  AllocatedStringPtr GetInputNameAllocated(size_t i, AllocatorWithDefaultOptions&) const { return {inputs[i]}; }
  AllocatedStringPtr GetOutputNameAllocated(size_t i, AllocatorWithDefaultOptions&) const { return {outputs[i]}; }

  std::vector<Value> Run(const RunOptions&, const char* const* names, const Value* given, size_t count,
                         const char* const* found, size_t) {
    const bool swapped = count != 2 || names[0] != inputs[0] || found[0] != outputs[0];
    std::vector<float> action, memory;
    for (size_t i = 0; i < 2; ++i) {
      action.push_back(swapped ? 0.0f : 2.0f * given[0].values[i] + given[1].values[i]);
      memory.push_back(given[1].values[i] + given[0].values[i]);
    }
    std::vector<Value> results;
    results.emplace_back(action, given[0].shape);
    results.emplace_back(memory, given[1].shape);
    return results;
  }
};

}  // namespace Ort
